package autograd

import "github.com/cistern-ml/cistern/tensor"

// IndexSelect returns the elements of x at the positions in index, int32 or int64, along a
// dimension; see [tensor.Layers.IndexSelect]. The index is a constant.
//
//go:noinline // as Add
func (t *Tape) IndexSelect(x *Variable, axis int, index *Variable) *Variable {
	return opIndex.applyAs("IndexSelect", t, &indexed{axis: axis}, x, index)
}

// Gather returns the elements that index, int32 or int64, chooses along a dimension of x; see
// [tensor.Layers.Gather]. The index is a constant.
//
//go:noinline // as Add
func (t *Tape) Gather(x *Variable, axis int, index *Variable) *Variable {
	return opIndex.applyAs("Gather", t, &indexed{axis: axis, each: true}, x, index)
}

// indexed is one use of IndexSelect or, with an index for each element, of Gather, of x and index.
type indexed struct {
	axis int
	each bool
}

var opIndex = newOp[indexed]("IndexSelect")

func (s *indexed) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(1))
	if s.each {
		return c.Runtime().Gather(c.Context(), c.Input(0), s.axis, c.Input(1))
	}
	return c.Runtime().IndexSelect(c.Context(), c.Input(0), s.axis, c.Input(1))
}

func (s *indexed) Backward(c *Call, g *tensor.Tensor) error {
	grad := (*tensor.Runtime).IndexSelectGrad
	if s.each {
		grad = (*tensor.Runtime).GatherGrad
	}
	d, err := grad(c.Runtime(), c.Context(), g, s.axis, c.Input(1), c.Input(0).Shape()...)
	return c.GiveReplacing(0, g, d, err)
}

// Embedding returns the rows of weight (rows, n) that index, int32 or int64 of any shape, names;
// see [tensor.Layers.Embedding]. The index is a constant.
//
//go:noinline // as Add
func (t *Tape) Embedding(index, weight *Variable, cfg tensor.EmbeddingConfig) *Variable {
	return opEmbedding.Apply(t, embedding{cfg}, weight, index)
}

// embedding is one use of Embedding, of weight and index.
type embedding struct{ cfg tensor.EmbeddingConfig }

var opEmbedding = newOp[embedding]("Embedding")

func (e *embedding) Forward(c *Call) (*tensor.Tensor, error) {
	c.Save(c.Input(1))
	return c.Runtime().Embedding(c.Context(), c.Input(1), c.Input(0), e.cfg)
}

// Backward adds to an existing gradient in place, or makes one.
func (e *embedding) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx := c.Runtime(), c.Context()
	if sum := c.onto(0); sum != nil {
		err := rt.AddEmbeddingGrad(ctx, sum, g, c.Input(1), e.cfg)
		c.Free(g)
		return c.Give(0, sum, err)
	}
	rows := c.dims(c.Input(0))[0]
	d, err := rt.EmbeddingGrad(ctx, g, c.Input(1), rows, e.cfg)
	return c.GiveReplacing(0, g, d, err)
}
