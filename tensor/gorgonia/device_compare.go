package gorgonia

import (
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// The comparisons give tensors of bool or, with gtensor.AsSameType, ones and zeros of the operands' type. A tensor to
// reuse must have that type.

// Gt is a > b, elementwise.
func (e *DeviceEngine) Gt(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Gt", strided.Gt, a, b, opts)
}

// GtScalar is Gt with a number, which is the right operand if left is true.
func (e *DeviceEngine) GtScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("GtScalar", strided.Gt, t, s, left, opts)
}

// Gte is a >= b, elementwise.
func (e *DeviceEngine) Gte(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Gte", strided.Gte, a, b, opts)
}

// GteScalar is Gte with a number, which is the right operand if left is true.
func (e *DeviceEngine) GteScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("GteScalar", strided.Gte, t, s, left, opts)
}

// Lt is a < b, elementwise.
func (e *DeviceEngine) Lt(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Lt", strided.Lt, a, b, opts)
}

// LtScalar is Lt with a number, which is the right operand if left is true.
func (e *DeviceEngine) LtScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("LtScalar", strided.Lt, t, s, left, opts)
}

// Lte is a <= b, elementwise.
func (e *DeviceEngine) Lte(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("Lte", strided.Lte, a, b, opts)
}

// LteScalar is Lte with a number, which is the right operand if left is true.
func (e *DeviceEngine) LteScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("LteScalar", strided.Lte, t, s, left, opts)
}

// ElEq is a == b, elementwise.
func (e *DeviceEngine) ElEq(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("ElEq", strided.Eq, a, b, opts)
}

// EqScalar is ElEq with a number, which is the right operand if left is true.
func (e *DeviceEngine) EqScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("EqScalar", strided.Eq, t, s, left, opts)
}

// ElNe is a != b, elementwise.
func (e *DeviceEngine) ElNe(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zip("ElNe", strided.Ne, a, b, opts)
}

// NeScalar is ElNe with a number, which is the right operand if left is true.
func (e *DeviceEngine) NeScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.zipScalar("NeScalar", strided.Ne, t, s, left, opts)
}
