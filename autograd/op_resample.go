package autograd

import "github.com/cistern-ml/cistern/tensor"

// Interpolate returns pictures or sequences in another size; see [tensor.Layers.Interpolate].
func (t *Tape) Interpolate(x *Variable, c tensor.InterpolateConfig) *Variable {
	return opInterpolate.Apply(t, interpolation{c}, x)
}

type interpolation struct{ cfg tensor.InterpolateConfig }

var opInterpolate = newOp[interpolation]("Interpolate")

func (*interpolation) Saves(*Call) {}

func (i *interpolation) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Interpolate(c.Context(), c.Input(0), i.cfg)
}

func (i *interpolation) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().InterpolateGrad(c.Context(), g, c.dims(c.Input(0)), i.cfg)
	return c.GiveReplacing(0, g, d, err)
}

// ReflectionPad returns x inside of a larger tensor, with its elements mirrored at its ends; see
// [tensor.Layers.ReflectionPad]. [Tape.Pad] pads with a number.
func (t *Tape) ReflectionPad(x *Variable, before, after []int) *Variable {
	return opEdges.applyAs("ReflectionPad", t, &edges{newDimensions(before), newDimensions(after), true}, x)
}

// ReplicationPad returns x inside of a larger tensor, with its outermost elements repeated; see
// [tensor.Layers.ReplicationPad].
func (t *Tape) ReplicationPad(x *Variable, before, after []int) *Variable {
	return opEdges.applyAs("ReplicationPad", t, &edges{newDimensions(before), newDimensions(after), false}, x)
}

// edges is one use of ReflectionPad or ReplicationPad.
type edges struct {
	before, after dimensions
	reflect       bool
}

var opEdges = newOp[edges]("ReplicationPad")

func (*edges) Saves(*Call) {}

func (e *edges) Forward(c *Call) (*tensor.Tensor, error) {
	pad := c.Runtime().ReplicationPad
	if e.reflect {
		pad = c.Runtime().ReflectionPad
	}
	return pad(c.Context(), c.Input(0), e.before.list(), e.after.list())
}

func (e *edges) Backward(c *Call, g *tensor.Tensor) error {
	grad := c.Runtime().ReplicationPadGrad
	if e.reflect {
		grad = c.Runtime().ReflectionPadGrad
	}
	d, err := grad(c.Context(), g, c.dims(c.Input(0)), e.before.list(), e.after.list())
	return c.GiveReplacing(0, g, d, err)
}
