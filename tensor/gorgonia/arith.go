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

// binary runs an elementwise operation of two tensors.
func (e *Engine) binary(op string, f binaryFunc, a, b gtensor.Tensor, opts []gtensor.FuncOpt) (r gtensor.Tensor, err error) {
	reuse, incr, _ := options(opts)
	err = e.run(op, func() (err error) {
		r, err = f(e.std, a, b, opts...)
		r, err = e.deliver(r, err, a, b, reuse, incr)
		return err
	}, a, b, reuse, incr)
	return r, err
}

// scalar runs an elementwise operation of a tensor and a number. StdEng gets some wrong, or panics, if the
// number is the left operand and the tensor's elements are not one after the other.
func (e *Engine) scalar(op string, f scalarFunc, t gtensor.Tensor, s any, left bool, opts []gtensor.FuncOpt) (r gtensor.Tensor, err error) {
	reuse, incr, unsafe := options(opts)
	operand, _ := s.(gtensor.Tensor)
	err = e.run(op, func() (err error) {
		c := t
		if !left && !unsafe {
			var done func()
			c, done = compact(t)
			defer done()
		}
		r, err = f(e.std, c, s, left, opts...)
		r, err = e.deliver(r, err, t, operand, reuse, incr)
		return err
	}, t, operand, reuse, incr)
	return r, err
}

// noZeros refuses integers of which one is 0 as divisors. StdEng panics in Mod and Inv; in Div it writes zeros before it
// returns an error, and none at all for views.
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

// Add is a + b.
func (e *Engine) Add(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Add", gtensor.StdEng.Add, a, b, opts)
}

// AddScalar is Add with a number, which is the right operand if left is true.
func (e *Engine) AddScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("AddScalar", gtensor.StdEng.AddScalar, t, s, left, opts)
}

// Sub is a - b.
func (e *Engine) Sub(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Sub", gtensor.StdEng.Sub, a, b, opts)
}

// SubScalar is Sub with a number, which is the right operand if left is true.
func (e *Engine) SubScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("SubScalar", gtensor.StdEng.SubScalar, t, s, left, opts)
}

// Mul is a * b, elementwise.
func (e *Engine) Mul(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Mul", gtensor.StdEng.Mul, a, b, opts)
}

// MulScalar is Mul with a number, which is the right operand if left is true.
func (e *Engine) MulScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("MulScalar", gtensor.StdEng.MulScalar, t, s, left, opts)
}

// Div is a / b.
func (e *Engine) Div(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := noZeros("Div", b); err != nil {
		return nil, err
	}
	return e.binary("Div", gtensor.StdEng.Div, a, b, opts)
}

// DivScalar is Div with a number, which is the right operand if left is true.
func (e *Engine) DivScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := noZeroDivisor("DivScalar", t, s, left); err != nil {
		return nil, err
	}
	return e.scalar("DivScalar", gtensor.StdEng.DivScalar, t, s, left, opts)
}

// Pow is a to the power of b.
func (e *Engine) Pow(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("Pow", gtensor.StdEng.Pow, a, b, opts)
}

// PowScalar is Pow with a number, which is the right operand if left is true.
func (e *Engine) PowScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("PowScalar", gtensor.StdEng.PowScalar, t, s, left, opts)
}

// Mod is a modulo b.
func (e *Engine) Mod(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := noZeros("Mod", b); err != nil {
		return nil, err
	}
	return e.binary("Mod", gtensor.StdEng.Mod, a, b, opts)
}

// ModScalar is Mod with a number, which is the right operand if left is true.
func (e *Engine) ModScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	if err := noZeroDivisor("ModScalar", t, s, left); err != nil {
		return nil, err
	}
	return e.scalar("ModScalar", gtensor.StdEng.ModScalar, t, s, left, opts)
}

// MinBetween is the smaller of a and b, elementwise.
func (e *Engine) MinBetween(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("MinBetween", gtensor.StdEng.MinBetween, a, b, opts)
}

// MinBetweenScalar is MinBetween with a number, which is the right operand if left is true.
func (e *Engine) MinBetweenScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("MinBetweenScalar", gtensor.StdEng.MinBetweenScalar, t, s, left, opts)
}

// MaxBetween is the larger of a and b, elementwise.
func (e *Engine) MaxBetween(a, b gtensor.Tensor, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.binary("MaxBetween", gtensor.StdEng.MaxBetween, a, b, opts)
}

// MaxBetweenScalar is MaxBetween with a number, which is the right operand if left is true.
func (e *Engine) MaxBetweenScalar(t gtensor.Tensor, s any, left bool, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.scalar("MaxBetweenScalar", gtensor.StdEng.MaxBetweenScalar, t, s, left, opts)
}

// FMA is y += a * x. It returns y.
func (e *Engine) FMA(a, x, y gtensor.Tensor) (gtensor.Tensor, error) {
	return e.Mul(a, x, gtensor.WithIncr(y))
}

// FMAScalar is FMA with a number x.
func (e *Engine) FMAScalar(a gtensor.Tensor, x any, y gtensor.Tensor) (gtensor.Tensor, error) {
	return e.MulScalar(a, x, true, gtensor.WithIncr(y))
}
