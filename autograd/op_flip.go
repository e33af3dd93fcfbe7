package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Flip returns x with the order of its elements reversed along the given axes (torch.flip); see
// [tensor.Runtime.Flip].
func (t *Tape) Flip(x *Variable, axes ...int) *Variable {
	return opFlip.Apply(t, flipped{newDimensions(axes)}, x)
}

type flipped struct{ axes dimensions }

var opFlip = newOp[flipped]("Flip")

func (f *flipped) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Flip(c.Context(), c.Input(0), f.axes.list()...)
}

func (f *flipped) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().Flip(c.Context(), g, f.axes.list()...)
	return c.GiveReplacing(0, g, d, err)
}

// Roll returns x with its elements moved by shifts[i] along axes[i] (torch.roll); see
// [tensor.Runtime.Roll].
func (t *Tape) Roll(x *Variable, shifts, axes []int) *Variable {
	return opRoll.Apply(t, rolled{newDimensions(shifts), newDimensions(axes)}, x)
}

type rolled struct{ shifts, axes dimensions }

var opRoll = newOp[rolled]("Roll")

func (r *rolled) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Roll(c.Context(), c.Input(0), r.shifts.list(), r.axes.list())
}

func (r *rolled) Backward(c *Call, g *tensor.Tensor) error {
	back := slices.Clone(r.shifts.list())
	for i := range back {
		back[i] = -back[i]
	}
	d, err := c.Runtime().Roll(c.Context(), g, back, r.axes.list())
	return c.GiveReplacing(0, g, d, err)
}
