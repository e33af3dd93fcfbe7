package gorgonia

import (
	"bytes"
	"fmt"
	"reflect"

	gtensor "gorgonia.org/tensor"
)

type (
	binaryFunc = func(gtensor.StdEng, gtensor.Tensor, gtensor.Tensor, ...gtensor.FuncOpt) (gtensor.Tensor, error)
	scalarFunc = func(gtensor.StdEng, gtensor.Tensor, any, bool, ...gtensor.FuncOpt) (gtensor.Tensor, error)
)

// elementwise runs an operation whose result is one of the operands, a tensor of the options, or a
// new tensor.
func (e *Engine) elementwise(run runner, op string, opts []gtensor.FuncOpt, f func(*temps) (gtensor.Tensor, error), operands ...gtensor.Tensor) (gtensor.Tensor, error) {
	reuse, incr, _ := options(opts)
	given := append(operands, reuse, incr)
	return result(run, op, func(w *temps) (gtensor.Tensor, error) {
		r, err := f(w)
		return e.deliver(r, err, given...)
	}, given...)
}

// binary runs an elementwise operation of two tensors.
func (e *Engine) binary(op string, f binaryFunc, a, b gtensor.Tensor, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.elementwise(e.run, op, opts, func(*temps) (gtensor.Tensor, error) { return f(e.std, a, b, opts...) }, a, b)
}

// scalar runs an elementwise operation of a tensor and a number. If the number is the left operand
// and the tensor's elements are not contiguous, StdEng returns wrong results or panics, so the
// tensor is copied.
func (e *Engine) scalar(op string, f scalarFunc, t gtensor.Tensor, s any, left bool, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	_, _, unsafe := options(opts)
	operand, _ := s.(gtensor.Tensor)
	return e.elementwise(e.run, op, opts, func(w *temps) (gtensor.Tensor, error) {
		x := t
		if !left && !unsafe {
			x = w.compact(t)
		}
		return f(e.std, x, s, left, opts...)
	}, t, operand)
}

// noZeros returns an error if an element of an integer divisor is 0. For such a divisor StdEng
// panics in Mod and Inv. In Div it writes zeros before it returns an error, and for views it
// returns none.
func noZeros(op string, divisor gtensor.Tensor) error {
	d, ok := divisor.(*gtensor.Dense)
	if !ok || usable(d) != nil || d.IsMasked() || !integer(d.Dtype()) {
		return nil
	}
	size := int(d.Dtype().Size())
	zero := make([]byte, size)
	it := d.Iterator()
	for i, err := it.Start(); err == nil; i, err = it.Next() {
		if bytes.Equal(d.Raw[i*size:(i+1)*size], zero) {
			return fmt.Errorf("gorgonia: %s: %w: integer division by zero", op, ErrInvalid)
		}
	}
	return nil
}

func noZeroDivisor(op string, t gtensor.Tensor, s any, left bool) error {
	operand, tensor := s.(gtensor.Tensor)
	switch v := reflect.ValueOf(s); {
	case !left:
		return noZeros(op, t)
	case tensor:
		return noZeros(op, operand)
	case v.IsValid() && (v.CanInt() || v.CanUint()) && v.IsZero():
		return fmt.Errorf("gorgonia: %s: %w: integer division by zero", op, ErrInvalid)
	}
	return nil
}

func integer(dt gtensor.Dtype) bool { return dt.Kind() >= reflect.Int && dt.Kind() <= reflect.Uintptr }

// fitsComparison returns an error if the tensor to reuse does not have the type of a comparison's
// result. StdEng writes bools over any type, and past the tensor's end.
func fitsComparison(op string, operand gtensor.Tensor, opts []gtensor.FuncOpt) error {
	if len(opts) == 0 {
		return nil
	}
	given, _ := gtensor.ParseFuncOpts(opts...).IncrReuse()
	if usable(given) != nil || usable(operand) != nil || given == nil {
		return nil // run refuses it
	}
	if want := comparisonType(operand.Dtype(), opts); given.Dtype() != want {
		return fmt.Errorf("gorgonia: %s: %w: the tensor to reuse is of %v and the result of %v: see gtensor.AsSameType", op, ErrDtype, given.Dtype(), want)
	}
	return nil
}

// comparisonType returns the type of a comparison's result: Bool or, with UseUnsafe or AsSameType,
// the type of the operands, with ones and zeros.
func comparisonType(operands gtensor.Dtype, opts []gtensor.FuncOpt) gtensor.Dtype {
	if len(opts) > 0 {
		if o := gtensor.ParseFuncOpts(opts...); o.Same() || !o.Safe() {
			return operands
		}
	}
	return gtensor.Bool
}
