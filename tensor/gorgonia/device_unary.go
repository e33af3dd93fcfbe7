package gorgonia

import (
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Neg is -a, elementwise.
func (e *DeviceEngine) Neg(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Neg", strided.Neg, a, 0, 0, opts)
}

// Inv is 1 / a, elementwise.
func (e *DeviceEngine) Inv(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Inv", strided.Inv, a, 0, 0, opts)
}

// Square is a², elementwise.
func (e *DeviceEngine) Square(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Square", strided.Square, a, 0, 0, opts)
}

// Cube is a³, elementwise.
func (e *DeviceEngine) Cube(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Cube", strided.Cube, a, 0, 0, opts)
}

// Exp is e to the power of a, elementwise.
func (e *DeviceEngine) Exp(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Exp", strided.Exp, a, 0, 0, opts)
}

// Tanh is the hyperbolic tangent of a, elementwise.
func (e *DeviceEngine) Tanh(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Tanh", strided.Tanh, a, 0, 0, opts)
}

// Log is the natural logarithm of a, elementwise.
func (e *DeviceEngine) Log(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Log", strided.Log, a, 0, 0, opts)
}

// Log2 is the base-2 logarithm of a, elementwise.
func (e *DeviceEngine) Log2(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Log2", strided.Log2, a, 0, 0, opts)
}

// Log10 is the base-10 logarithm of a, elementwise.
func (e *DeviceEngine) Log10(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Log10", strided.Log10, a, 0, 0, opts)
}

// Sqrt is the square root of a, elementwise.
func (e *DeviceEngine) Sqrt(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Sqrt", strided.Sqrt, a, 0, 0, opts)
}

// Cbrt is the cube root of a, elementwise.
func (e *DeviceEngine) Cbrt(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Cbrt", strided.Cbrt, a, 0, 0, opts)
}

// InvSqrt is 1 / sqrt(a), elementwise.
func (e *DeviceEngine) InvSqrt(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("InvSqrt", strided.InvSqrt, a, 0, 0, opts)
}

// Abs is the absolute value of a, elementwise.
func (e *DeviceEngine) Abs(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Abs", strided.Abs, a, 0, 0, opts)
}

// Sign is the sign of a: -1, 0 or 1, elementwise.
func (e *DeviceEngine) Sign(a gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.apply("Sign", strided.Sign, a, 0, 0, opts)
}
