package gorgonia

import (
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// Add is a + b.
func (e *DeviceEngine) Add(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Add", strided.Add, a, b, opts)
}

// AddScalar is Add with a number, which is the right operand if left is true.
func (e *DeviceEngine) AddScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("AddScalar", strided.Add, t, s, left, opts)
}

// Sub is a - b.
func (e *DeviceEngine) Sub(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Sub", strided.Sub, a, b, opts)
}

// SubScalar is Sub with a number, which is the right operand if left is true.
func (e *DeviceEngine) SubScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("SubScalar", strided.Sub, t, s, left, opts)
}

// Mul is a * b, elementwise.
func (e *DeviceEngine) Mul(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Mul", strided.Mul, a, b, opts)
}

// MulScalar is Mul with a number, which is the right operand if left is true.
func (e *DeviceEngine) MulScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("MulScalar", strided.Mul, t, s, left, opts)
}

// Div is a / b, after IEEE 754.
func (e *DeviceEngine) Div(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Div", strided.Div, a, b, opts)
}

// DivScalar is Div with a number, which is the right operand if left is true.
func (e *DeviceEngine) DivScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("DivScalar", strided.Div, t, s, left, opts)
}

// Pow is a to the power of b.
func (e *DeviceEngine) Pow(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Pow", strided.Pow, a, b, opts)
}

// PowScalar is Pow with a number, which is the right operand if left is true.
func (e *DeviceEngine) PowScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("PowScalar", strided.Pow, t, s, left, opts)
}

// Mod is a modulo b.
func (e *DeviceEngine) Mod(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Mod", strided.Mod, a, b, opts)
}

// ModScalar is Mod with a number, which is the right operand if left is true.
func (e *DeviceEngine) ModScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("ModScalar", strided.Mod, t, s, left, opts)
}

// MinBetween is the smaller of a and b, elementwise.
func (e *DeviceEngine) MinBetween(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("MinBetween", strided.Least, a, b, opts)
}

// MinBetweenScalar is MinBetween with a number, which is the right operand if left is true.
func (e *DeviceEngine) MinBetweenScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("MinBetweenScalar", strided.Least, t, s, left, opts)
}

// MaxBetween is the larger of a and b, elementwise.
func (e *DeviceEngine) MaxBetween(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("MaxBetween", strided.Greatest, a, b, opts)
}

// MaxBetweenScalar is MaxBetween with a number, which is the right operand if left is true.
func (e *DeviceEngine) MaxBetweenScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("MaxBetweenScalar", strided.Greatest, t, s, left, opts)
}
