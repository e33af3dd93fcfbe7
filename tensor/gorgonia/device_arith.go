package gorgonia

import (
	"fmt"
	"reflect"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// zip runs an elementwise operation of two tensors.
func (e *DeviceEngine) zip(op string, f strided.Binary, a, b gtensor.Tensor, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return one(e, op, func(c *call) (gtensor.Tensor, error) {
		ab, t, err := c.floats(a, b)
		if err != nil {
			return nil, err
		}
		right, err := ab[1].like(ab[0])
		if err != nil {
			return nil, err
		}
		return c.zip(f, t, ab[0], strided.Operand{Array: ab[0].Array}, strided.Operand{Array: right}, opts)
	})
}

// zipScalar runs an elementwise operation of a tensor and a number. The number is a Go number, or a
// tensor without dimensions on the device or on the host.
func (e *DeviceEngine) zipScalar(op string, f strided.Binary, t gtensor.Tensor, s any, left bool, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return one(e, op, func(c *call) (gtensor.Tensor, error) {
		ts, typ, err := c.floats(t)
		if err != nil {
			return nil, err
		}
		a := strided.Operand{Array: ts[0].Array}
		b, err := c.number(s, ts[0])
		if err != nil {
			return nil, err
		}
		if !left {
			a, b = b, a
		}
		return c.zip(f, typ, ts[0], a, b, opts)
	})
}

// zip queues an elementwise operation of a and b, which have the dimensions of x. x is one of them.
func (c *call) zip(f strided.Binary, t strided.Type, x operand, a, b strided.Operand, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	dt := x.dtype()
	if f.Compares() {
		dt = comparisonType(dt, opts)
	}
	to, err := c.target(dt, x, opts, f <= strided.Mod, a.Array, b.Array)
	if err != nil {
		return nil, err
	}
	return to.done(c, c.e.kernels.Zip(f, t, to.into, a, b, to.increment))
}

// number returns s as an operand with x's dimensions. Its type must be x's.
func (c *call) number(s any, x operand) (strided.Operand, error) {
	if d, ok := s.(*gtensor.Dense); ok && d != nil {
		if !d.Shape().IsScalar() {
			return strided.Operand{}, fmt.Errorf("%w: a tensor of shape %v is not a number", ErrShape, d.Shape())
		}
		if d.Engine() == gtensor.Engine(c.e) || !d.IsNativelyAccessible() {
			o, err := c.operand(d)
			if err == nil && o.dtype() != x.dtype() {
				err = fmt.Errorf("%w: %v and %v: want one for all", ErrDtype, x.dtype(), o.dtype())
			}
			o.Dims, o.Strides = x.Dims, make([]int, len(x.Dims))
			return strided.Operand{Array: o.Array}, err
		}
		if err := usable(d); err != nil {
			return strided.Operand{}, err
		}
		s = d.ScalarValue()
	}
	v := reflect.ValueOf(s)
	if !v.IsValid() || v.Type() != x.dtype().Type {
		return strided.Operand{}, fmt.Errorf("%w: a tensor of %v and a number of type %T: want one type", ErrDtype, x.dtype(), s)
	}
	return strided.Operand{Number: v.Float(), IsNumber: true}, nil
}

// apply runs an elementwise function.
func (e *DeviceEngine) apply(op string, f strided.Unary, a gtensor.Tensor, lo, hi float64, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return one(e, op, func(c *call) (gtensor.Tensor, error) {
		xs, t, err := c.floats(a)
		if err != nil {
			return nil, err
		}
		to, err := c.target(xs[0].dtype(), xs[0], opts, true)
		if err != nil {
			return nil, err
		}
		return to.done(c, c.e.kernels.Map(f, t, to.into, xs[0].Array, lo, hi, to.increment))
	})
}

// Clamp limits every element to the range from min to max.
func (e *DeviceEngine) Clamp(a gtensor.Tensor, min, max any, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	var limits [2]float64
	for i, v := range []any{min, max} {
		f := reflect.ValueOf(v)
		if d, ok := a.(*gtensor.Dense); ok && d != nil && (!f.IsValid() || f.Type() != d.Dtype().Type || !f.CanFloat()) {
			return nil, fmt.Errorf("gorgonia: Clamp: %w: a tensor of %v and a limit of type %T: want one type of float", ErrDtype, d.Dtype(), v)
		}
		if f.IsValid() && f.CanFloat() {
			limits[i] = f.Float()
		}
	}
	return e.apply("Clamp", strided.Clamp, a, limits[0], limits[1], opts)
}
