package gorgonia

import (
	"context"
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// SoftMax is the runtime's along the last axis, to which others are moved. What follows from logarithms of sums of exponentials
// has several kernels.

// SoftMax is the softmax along an axis; negative axes count from the last.
func (e *DeviceEngine) SoftMax(x gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.along("SoftMax", axis, opts, func(c *call, l lines) (strided.Array, error) {
		t, err := c.tensor(l.in[0], l.dt, l.in[0].Dims...)
		if err != nil {
			return strided.Array{}, err
		}
		return c.keep(c.e.rt.Softmax(context.Background(), t))
	}, x)
}

// SoftMaxB is the gradient of the input of SoftMax.
func (e *DeviceEngine) SoftMaxB(output, grad gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.along("SoftMaxB", axis, opts, func(c *call, l lines) (strided.Array, error) {
		y, err := c.tensor(l.in[0], l.dt, l.in[0].Dims...)
		if err != nil {
			return strided.Array{}, err
		}
		dy, err := c.tensor(l.in[1], l.dt, l.in[1].Dims...)
		if err != nil {
			return strided.Array{}, err
		}
		return c.keep(c.e.rt.SoftmaxGrad(context.Background(), dy, y))
	}, output, grad)
}

// LogSoftMax is the logarithm of SoftMax.
func (e *DeviceEngine) LogSoftMax(x gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.along("LogSoftMax", axis, opts, func(c *call, l lines) (strided.Array, error) {
		in := l.in[0]
		last := len(in.Dims) - 1
		top, err := c.temp(in.Size, in.Dims[:last]...)
		if err != nil {
			return top, err
		}
		if err := c.e.kernels.Fold(false, false, l.typ, top.Ptr, in, upTo(last), []int{last}); err != nil {
			return top, err
		}
		shifted, err := c.temp(in.Size, in.Dims...)
		if err != nil {
			return top, err
		}
		if err := l.zip(c, strided.Sub, shifted, in, top.Insert(last, in.Dims[last])); err != nil {
			return top, err
		}
		sum, err := l.sumOfExp(c, shifted)
		if err != nil {
			return top, err
		}
		if err := c.e.kernels.Map(strided.Log, l.typ, sum, sum, 0, 0, false); err != nil {
			return top, err
		}
		return shifted, l.zip(c, strided.Sub, shifted, shifted, sum.Insert(last, in.Dims[last]))
	}, x)
}

// LogSoftMaxB is the gradient of the input of LogSoftMax: grad - exp(output) * sum(grad).
func (e *DeviceEngine) LogSoftMaxB(output, grad gtensor.Tensor, axis int, opts ...gtensor.FuncOpt) (gtensor.Tensor, error) {
	return e.along("LogSoftMaxB", axis, opts, func(c *call, l lines) (strided.Array, error) {
		out, dy := l.in[0], l.in[1]
		last := len(out.Dims) - 1
		sum, err := c.keep(c.sum(dy, l.dt, last))
		if err != nil {
			return sum, err
		}
		p, err := c.temp(out.Size, out.Dims...)
		if err != nil {
			return p, err
		}
		if err := c.e.kernels.Map(strided.Exp, l.typ, p, out, 0, 0, false); err != nil {
			return p, err
		}
		if err := l.zip(c, strided.Mul, p, p, sum.Insert(last, out.Dims[last])); err != nil {
			return p, err
		}
		return p, l.zip(c, strided.Sub, p, dy, p)
	}, output, grad)
}

// lines are operands whose lines along the last axis an operation works on.
type lines struct {
	in  []strided.Array // dense
	dt  gtensor.Dtype
	typ strided.Type
}

func (l lines) zip(c *call, op strided.Binary, dst, a, b strided.Array) error {
	return c.e.kernels.Zip(op, l.typ, dst, strided.Operand{Array: a}, strided.Operand{Array: b}, false)
}

func (l lines) sumOfExp(c *call, x strided.Array) (strided.Array, error) {
	e, err := c.temp(x.Size, x.Dims...)
	if err != nil {
		return e, err
	}
	if err := c.e.kernels.Map(strided.Exp, l.typ, e, x, 0, 0, false); err != nil {
		return e, err
	}
	return c.keep(c.sum(e, l.dt, len(x.Dims)-1))
}

// keep takes a result of the runtime as a temporary array.
func (c *call) keep(t *tensor.Tensor, err error) (strided.Array, error) {
	if err != nil {
		return strided.Array{}, err
	}
	c.temps = append(c.temps, t)
	return strided.Dense(start(t), int(t.Dtype().Size()), t.Shape()...), nil
}

func upTo(n int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	return all
}

// along runs an operation along an axis: f gets the operands with that axis last, and gives a dense result of the same
// dimensions. It goes to a new tensor, to that of WithReuse, or in place with UseUnsafe.
func (e *DeviceEngine) along(op string, axis int, opts []gtensor.FuncOpt, f func(*call, lines) (strided.Array, error), xs ...gtensor.Tensor) (gtensor.Tensor, error) {
	return e.one(op, func(c *call) (*gtensor.Dense, error) {
		all, t, err := c.floats(xs...)
		if err != nil {
			return nil, err
		}
		first := all[0]
		dims := len(first.Dims)
		if dims == 0 {
			return nil, fmt.Errorf("%w: a number has no axis", ErrShape)
		}
		order := upTo(dims)
		at := (axis%dims + dims) % dims
		order = append(slices.Delete(order, at, at+1), at)
		l := lines{dt: first.dtype(), typ: t}
		var others []strided.Array
		for _, o := range all {
			x, err := o.like(first)
			if err != nil {
				return nil, err
			}
			others = append(others, x)
		}
		to, err := c.target(l.dt, first, opts, false, others...)
		if err != nil {
			return nil, err
		}
		for _, x := range others {
			if x, err = c.dense(x.Permute(order...)); err != nil {
				return nil, err
			}
			l.in = append(l.in, x)
		}
		r, err := f(c, l)
		if err != nil {
			return nil, err
		}
		if err := c.e.kernels.Copy(to.into.Permute(order...), r); err != nil {
			return nil, err
		}
		return to.done(c)
	})
}
