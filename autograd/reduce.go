package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Sum returns the sum of x over the given axes, which disappear from the shape; over all of them if none is
// given. Negative axes count from the end.
func (t *Tape) Sum(x *Variable, axes ...int) *Variable {
	if !t.begin("Sum", x) {
		return t.inert()
	}
	y, err := t.rt.Sum(t.ctx, x.value, axes...)
	return t.reduced("Sum", x, y, err, axes, 1)
}

// Mean returns the mean of x over the given axes, as Sum does.
func (t *Tape) Mean(x *Variable, axes ...int) *Variable {
	if !t.begin("Mean", x) {
		return t.inert()
	}
	y, err := t.rt.Mean(t.ctx, x.value, axes...)
	return t.reduced("Mean", x, y, err, axes, float64(y.Elements())/float64(x.value.Elements()))
}

func (t *Tape) reduced(op string, x *Variable, y *tensor.Tensor, err error, axes []int, scale float64) *Variable {
	axes = slices.Clone(axes) // the caller may write its list before Backward
	return t.push(op, t.result(op, y, err), []*Variable{x}, nil, func(_ *Node, g *tensor.Tensor) {
		shape := x.value.Shape()
		kept := slices.Clone(shape)
		for i := range kept {
			if len(axes) == 0 {
				kept[i] = 1
			}
		}
		for _, a := range axes {
			if a < 0 {
				a += len(kept)
			}
			kept[a] = 1
		}
		var err error
		if scale != 1 && x.value.Elements() > 0 {
			if g, err = t.scaled(g, scale); err != nil {
				t.fail(op+" backward", err)
				return
			}
		}
		row, err := t.rt.Reshape(t.ctx, g, kept...)
		t.free(g)
		if err != nil {
			t.fail(op+" backward", err)
			return
		}
		d, err := t.rt.BroadcastTo(t.ctx, row, shape...)
		t.free(row)
		t.give(op, x, d, err)
	})
}
