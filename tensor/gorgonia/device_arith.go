package gorgonia

import (
	"fmt"
	"reflect"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// zip runs an elementwise operation of two tensors.
func (e *DeviceEngine) zip(op string, f strided.Binary, a, b gtensor.Tensor, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.one(op, func(c *call) (*gtensor.Dense, error) {
		ab, t, err := c.floats(a, b)
		if err != nil {
			return nil, err
		}
		right, err := ab[1].like(ab[0])
		if err != nil {
			return nil, err
		}
		to, err := c.target(resultType(f, ab[0], opts), ab[0], opts, f <= strided.Mod, right)
		if err != nil {
			return nil, err
		}
		if err := c.e.kernels.Zip(f, t, to.into, strided.Operand{Array: ab[0].Array}, strided.Operand{Array: right}, to.increment); err != nil {
			return nil, err
		}
		return to.done(c)
	})
}

// resultType is that of the operands or, of a comparison without UseUnsafe or AsSameType, Bool.
func resultType(f strided.Binary, a operand, opts []gtensor.FuncOpt) gtensor.Dtype {
	if !f.Compares() {
		return a.dtype()
	}
	if len(opts) > 0 {
		if o := gtensor.ParseFuncOpts(opts...); o.Same() || !o.Safe() {
			return a.dtype()
		}
	}
	return gtensor.Bool
}

// zipScalar runs an elementwise operation of a tensor and a number, which is a Go number or a tensor without dimensions, on the
// device or on the host.
func (e *DeviceEngine) zipScalar(op string, f strided.Binary, t gtensor.Tensor, s any, left bool, opts []gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.one(op, func(c *call) (*gtensor.Dense, error) {
		ts, typ, err := c.floats(t)
		if err != nil {
			return nil, err
		}
		x := ts[0]
		number, err := c.number(s, x)
		if err != nil {
			return nil, err
		}
		others := []strided.Array{}
		if !number.IsNumber {
			others = append(others, number.Array)
		}
		to, err := c.target(resultType(f, x, opts), x, opts, f <= strided.Mod, others...)
		if err != nil {
			return nil, err
		}
		a, b := strided.Operand{Array: x.Array}, number
		if !left {
			a, b = b, a
		}
		if err := c.e.kernels.Zip(f, typ, to.into, a, b, to.increment); err != nil {
			return nil, err
		}
		return to.done(c)
	})
}

// number is s as an operand of x's dimensions. Its type must be that of x.
func (c *call) number(s any, x operand) (strided.Operand, error) {
	if d, ok := s.(*gtensor.Dense); ok && d != nil {
		if !d.Shape().IsScalar() {
			return strided.Operand{}, fmt.Errorf("%w: a tensor of shape %v is no number", ErrShape, d.Shape())
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
	return e.one(op, func(c *call) (*gtensor.Dense, error) {
		xs, t, err := c.floats(a)
		if err != nil {
			return nil, err
		}
		to, err := c.target(xs[0].dtype(), xs[0], opts, true)
		if err != nil {
			return nil, err
		}
		if err := c.e.kernels.Map(f, t, to.into, xs[0].Array, lo, hi, to.increment); err != nil {
			return nil, err
		}
		return to.done(c)
	})
}

// Clamp limits every element to between min and max.
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

// FMA is y += a * x. It returns y.
func (e *DeviceEngine) FMA(a, x, y gtensor.Tensor) (gtensor.Tensor, error) {
	return e.zip("FMA", strided.Mul, a, x, []gtensor.FuncOpt{gtensor.WithIncr(y)})
}

// FMAScalar is FMA with a number x.
func (e *DeviceEngine) FMAScalar(a gtensor.Tensor, x any, y gtensor.Tensor) (gtensor.Tensor, error) {
	return e.zipScalar("FMAScalar", strided.Mul, a, x, true, []gtensor.FuncOpt{gtensor.WithIncr(y)})
}
