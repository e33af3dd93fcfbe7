package gorgonia

import (
	"fmt"

	gtensor "gorgonia.org/tensor"
)

// The comparisons give tensors of bool or, with gtensor.AsSameType, ones and zeros of the operands' type. A tensor to
// reuse must have that type: StdEng writes bools over any, and past its end.

func (e *Engine) compare(op string, f binaryFunc, a, b gtensor.Tensor, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := fitsComparison(op, a, opts); err != nil {
		return nil, err
	}
	return e.binary(op, f, a, b, opts)
}

func (e *Engine) compareScalar(op string, f scalarFunc, t gtensor.Tensor, s any, left bool, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := fitsComparison(op, t, opts); err != nil {
		return nil, err
	}
	return e.scalar(op, f, t, s, left, opts)
}

func fitsComparison(op string, operand gtensor.Tensor, opts []gtensor.FuncOpt) error {
	if len(opts) == 0 {
		return nil
	}
	o := gtensor.ParseFuncOpts(opts...)
	given, _ := o.IncrReuse()
	if usable(given) != nil || usable(operand) != nil || given == nil {
		return nil // which run refuses
	}
	want := gtensor.Bool
	if o.Same() || !o.Safe() {
		want = operand.Dtype()
	}
	if given.Dtype() != want {
		return fmt.Errorf("gorgonia: %s: %w: the tensor to reuse is of %v and the result of %v: see gtensor.AsSameType", op, ErrDtype, given.Dtype(), want)
	}
	return nil
}

// Gt is a > b, elementwise.
func (e *Engine) Gt(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compare("Gt", gtensor.StdEng.Gt, a, b, opts)
}

// GtScalar is Gt with a number, which is the right operand if left is true.
func (e *Engine) GtScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compareScalar("GtScalar", gtensor.StdEng.GtScalar, t, s, left, opts)
}

// Gte is a >= b, elementwise.
func (e *Engine) Gte(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compare("Gte", gtensor.StdEng.Gte, a, b, opts)
}

// GteScalar is Gte with a number, which is the right operand if left is true.
func (e *Engine) GteScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compareScalar("GteScalar", gtensor.StdEng.GteScalar, t, s, left, opts)
}

// Lt is a < b, elementwise.
func (e *Engine) Lt(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compare("Lt", gtensor.StdEng.Lt, a, b, opts)
}

// LtScalar is Lt with a number, which is the right operand if left is true.
func (e *Engine) LtScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compareScalar("LtScalar", gtensor.StdEng.LtScalar, t, s, left, opts)
}

// Lte is a <= b, elementwise.
func (e *Engine) Lte(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compare("Lte", gtensor.StdEng.Lte, a, b, opts)
}

// LteScalar is Lte with a number, which is the right operand if left is true.
func (e *Engine) LteScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compareScalar("LteScalar", gtensor.StdEng.LteScalar, t, s, left, opts)
}

// ElEq is a == b, elementwise.
func (e *Engine) ElEq(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compare("ElEq", gtensor.StdEng.ElEq, a, b, opts)
}

// EqScalar is ElEq with a number, which is the right operand if left is true.
func (e *Engine) EqScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compareScalar("EqScalar", gtensor.StdEng.EqScalar, t, s, left, opts)
}

// ElNe is a != b, elementwise.
func (e *Engine) ElNe(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compare("ElNe", gtensor.StdEng.ElNe, a, b, opts)
}

// NeScalar is ElNe with a number, which is the right operand if left is true.
func (e *Engine) NeScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.compareScalar("NeScalar", gtensor.StdEng.NeScalar, t, s, left, opts)
}
