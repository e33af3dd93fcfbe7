package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Sum returns the sum of x over the given axes, which disappear from the shape; over all of them if
// none is given. Negative axes count from the end.
func (t *Tape) Sum(x *Variable, axes ...int) *Variable {
	return opSum.Apply(t, reduce{axes: newDimensions(axes)}, x)
}

// Mean returns the mean of x over the given axes, as Sum does.
func (t *Tape) Mean(x *Variable, axes ...int) *Variable {
	return opSum.applyAs("Mean", t, &reduce{axes: newDimensions(axes), mean: true}, x)
}

// reduce is a sum or a mean.
type reduce struct {
	axes dimensions
	mean bool
}

var opSum = newOp[reduce]("Sum")

func (r *reduce) Forward(c *Call) (*tensor.Tensor, error) {
	if r.mean {
		return c.Runtime().Mean(c.Context(), c.Input(0), r.axes.list()...)
	}
	return c.Runtime().Sum(c.Context(), c.Input(0), r.axes.list()...)
}

func (r *reduce) Backward(c *Call, g *tensor.Tensor) (err error) {
	x := c.Input(0)
	if n := x.Elements(); r.mean && g.Elements() != n {
		if g, err = c.scaled(g, float64(g.Elements())/float64(n)); err != nil {
			return err
		}
	}
	shape := x.Shape()
	row, err := c.Runtime().Reshape(c.Context(), g, keptDims(shape, r.axes.list())...)
	c.Free(g)
	if err != nil {
		return err
	}
	d, err := c.Runtime().BroadcastTo(c.Context(), row, shape...)
	return c.GiveReplacing(0, row, d, err)
}

// keptDims returns shape with 1 for the given axes, or for all of them if none is given.
func keptDims(shape tensor.Shape, axes []int) tensor.Shape {
	kept := slices.Clone(shape)
	for i := range kept {
		if len(axes) == 0 || slices.Contains(axes, i) || slices.Contains(axes, i-len(kept)) {
			kept[i] = 1
		}
	}
	return kept
}
