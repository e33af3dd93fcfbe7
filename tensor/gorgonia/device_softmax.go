package gorgonia

import (
	"context"
	"fmt"
	"slices"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/gorgonia/internal/strided"
)

// lines holds the operands of an operation along the last axis.
type lines struct {
	*call
	in  []strided.Array // dense
	dt  gtensor.Dtype
	typ strided.Type
}

func softMax(l lines) (strided.Array, error) {
	t, err := l.tensor(l.in[0], l.dt)
	if err != nil {
		return strided.Array{}, err
	}
	return l.keep(l.e.rt.Softmax(context.Background(), t))
}

func softMaxGrad(l lines) (strided.Array, error) {
	y, err := l.tensor(l.in[0], l.dt)
	if err != nil {
		return strided.Array{}, err
	}
	dy, err := l.tensor(l.in[1], l.dt)
	if err != nil {
		return strided.Array{}, err
	}
	return l.keep(l.e.rt.SoftmaxGrad(context.Background(), dy, y))
}

// logSoftMax uses several kernels, because the runtime has no single kernel for it.
func logSoftMax(l lines) (strided.Array, error) {
	in := l.in[0]
	last := len(in.Dims) - 1
	top, err := l.temp(in.Size, in.Dims[:last]...)
	if err != nil {
		return top, err
	}
	if err := l.e.kernels.Fold(false, false, l.typ, top.Ptr, in, upTo(last), []int{last}); err != nil {
		return top, err
	}
	shifted, err := l.temp(in.Size, in.Dims...)
	if err != nil {
		return top, err
	}
	if err := l.zip(strided.Sub, shifted, in, top.Insert(last, in.Dims[last])); err != nil {
		return top, err
	}
	powers, err := l.exp(shifted)
	if err != nil {
		return top, err
	}
	sum, err := l.keep(l.sum(powers, l.dt, last))
	if err != nil {
		return top, err
	}
	if err := l.e.kernels.Map(strided.Log, l.typ, sum, sum, 0, 0, false); err != nil {
		return top, err
	}
	return shifted, l.zip(strided.Sub, shifted, shifted, sum.Insert(last, in.Dims[last]))
}

// logSoftMaxGrad computes grad - exp(output) * sum(grad).
func logSoftMaxGrad(l lines) (strided.Array, error) {
	out, dy := l.in[0], l.in[1]
	last := len(out.Dims) - 1
	sum, err := l.keep(l.sum(dy, l.dt, last))
	if err != nil {
		return sum, err
	}
	p, err := l.exp(out)
	if err != nil {
		return p, err
	}
	if err := l.zip(strided.Mul, p, p, sum.Insert(last, out.Dims[last])); err != nil {
		return p, err
	}
	return p, l.zip(strided.Sub, p, dy, p)
}

func (l lines) zip(op strided.Binary, dst, a, b strided.Array) error {
	return l.e.kernels.Zip(op, l.typ, dst, strided.Operand{Array: a}, strided.Operand{Array: b}, false)
}

func (l lines) exp(x strided.Array) (strided.Array, error) {
	y, err := l.temp(x.Size, x.Dims...)
	if err != nil {
		return y, err
	}
	return y, l.e.kernels.Map(strided.Exp, l.typ, y, x, 0, 0, false)
}

// keep returns a result of the runtime as a temporary array.
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

// along runs an operation along an axis. f gets the operands with that axis last, and returns a
// dense result of the same dimensions. The destination is a new tensor, the tensor of WithReuse, or
// the operand with UseUnsafe.
func (e *DeviceEngine) along(op string, axis int, opts []gtensor.FuncOpt, f func(lines) (strided.Array, error), xs ...gtensor.Tensor) (gtensor.Tensor, error) {
	return one(e, op, func(c *call) (gtensor.Tensor, error) {
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
		l := lines{call: c, dt: first.dtype(), typ: t}
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
		r, err := f(l)
		if err != nil {
			return nil, err
		}
		return to.done(c, c.e.kernels.Copy(to.into.Permute(order...), r))
	})
}
