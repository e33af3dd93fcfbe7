package tensor

import gtensor "gorgonia.org/tensor"

// The comparisons give tensors of bool or, with gtensor.AsSameType, ones and zeros of the operands' type.

// Gt is a > b, elementwise.
func (e *Engine) Gt(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Gt", gtensor.StdEng.Gt, a, b, opts)
}

// GtScalar is Gt with a number, which is the right operand if left is true.
func (e *Engine) GtScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("GtScalar", gtensor.StdEng.GtScalar, t, s, left, opts)
}

// Gte is a >= b, elementwise.
func (e *Engine) Gte(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Gte", gtensor.StdEng.Gte, a, b, opts)
}

// GteScalar is Gte with a number, which is the right operand if left is true.
func (e *Engine) GteScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("GteScalar", gtensor.StdEng.GteScalar, t, s, left, opts)
}

// Lt is a < b, elementwise.
func (e *Engine) Lt(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Lt", gtensor.StdEng.Lt, a, b, opts)
}

// LtScalar is Lt with a number, which is the right operand if left is true.
func (e *Engine) LtScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("LtScalar", gtensor.StdEng.LtScalar, t, s, left, opts)
}

// Lte is a <= b, elementwise.
func (e *Engine) Lte(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Lte", gtensor.StdEng.Lte, a, b, opts)
}

// LteScalar is Lte with a number, which is the right operand if left is true.
func (e *Engine) LteScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("LteScalar", gtensor.StdEng.LteScalar, t, s, left, opts)
}

// ElEq is a == b, elementwise.
func (e *Engine) ElEq(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("ElEq", gtensor.StdEng.ElEq, a, b, opts)
}

// EqScalar is ElEq with a number, which is the right operand if left is true.
func (e *Engine) EqScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("EqScalar", gtensor.StdEng.EqScalar, t, s, left, opts)
}

// ElNe is a != b, elementwise.
func (e *Engine) ElNe(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("ElNe", gtensor.StdEng.ElNe, a, b, opts)
}

// NeScalar is ElNe with a number, which is the right operand if left is true.
func (e *Engine) NeScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("NeScalar", gtensor.StdEng.NeScalar, t, s, left, opts)
}
