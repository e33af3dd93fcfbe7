package autograd

import "github.com/cistern-ml/cistern/tensor"

// Scatter returns x with the elements that index, int32 or int64, chooses along a dimension
// replaced by those of src (torch.scatter); see [tensor.Layers.Scatter]. The index is a constant.
// If it chooses an element twice, both elements of src get its gradient, as in PyTorch.
//
//go:noinline // as Add
func (t *Tape) Scatter(x *Variable, axis int, index, src *Variable) *Variable {
	return opScatter.applyAs("Scatter", t, &scattered{axis: axis}, x, src, index)
}

// ScatterAdd returns x with src added at the elements that index, int32 or int64, chooses along a
// dimension (torch.scatter_add); see [tensor.Layers.ScatterAdd]. The index is a constant.
//
//go:noinline // as Add
func (t *Tape) ScatterAdd(x *Variable, axis int, index, src *Variable) *Variable {
	return opScatter.applyAs("ScatterAdd", t, &scattered{axis: axis, add: true}, x, src, index)
}

// scattered is one use of Scatter or ScatterAdd, of x, src and index.
type scattered struct {
	axis int
	add  bool
}

var opScatter = newOp[scattered]("Scatter")

func (s *scattered) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(2))
	if s.add {
		return c.Runtime().ScatterAdd(c.Context(), c.Input(0), s.axis, c.Input(2), c.Input(1))
	}
	return c.Runtime().Scatter(c.Context(), c.Input(0), s.axis, c.Input(2), c.Input(1))
}

func (s *scattered) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, index := c.Runtime(), c.Context(), c.Input(2)
	if c.NeedsGrad(1) {
		d, err := rt.Gather(ctx, g, s.axis, index)
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	if s.add || !c.NeedsGrad(0) {
		return c.Give(0, g, nil)
	}
	d, err := rt.ScatterGrad(ctx, g, s.axis, index)
	return c.GiveReplacing(0, g, d, err)
}

// OneHot returns a vector of the dtype for each of labels, along a new last dimension of classes
// elements: 1 at the label, and 0 elsewhere (torch.nn.functional.one_hot); see
// [tensor.Layers.OneHot]. It is a constant.
//
//go:noinline // as Add
func (t *Tape) OneHot(labels *Variable, classes int, dtype tensor.Dtype) *Variable {
	return opOneHot.Apply(t, oneHot{classes, dtype}, labels)
}

type oneHot struct {
	classes int
	dtype   tensor.Dtype
}

var opOneHot = newOp[oneHot]("OneHot")

func (*oneHot) constant() {}

func (o *oneHot) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().OneHot(c.Context(), c.Input(0), o.classes, o.dtype)
}

func (*oneHot) Backward(*Call, *tensor.Tensor) error { return nil }
