package autograd

import "github.com/cistern-ml/cistern/tensor"

// IndexSelect returns the elements of x at the places of a dimension that index names, int32 or int64; see
// [tensor.Layers.IndexSelect]. The index is a constant.
func (t *Tape) IndexSelect(x *Variable, axis int, index *Variable) *Variable {
	var shape tensor.Shape
	return t.Func("IndexSelect", []*Variable{x, index}, func(c *Call) (*tensor.Tensor, error) {
		shape = c.Input(0).Shape()
		c.Save(c.Input(1))
		return t.rt.IndexSelect(t.ctx, c.Input(0), axis, c.Input(1))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.IndexSelectGrad(t.ctx, g, axis, c.Input(1), shape...))
	})
}

// Gather returns the elements that index, int32 or int64, chooses along a dimension of x; see
// [tensor.Layers.Gather]. The index is a constant.
func (t *Tape) Gather(x *Variable, axis int, index *Variable) *Variable {
	var shape tensor.Shape
	return t.Func("Gather", []*Variable{x, index}, func(c *Call) (*tensor.Tensor, error) {
		shape = c.Input(0).Shape()
		c.Save(c.Input(1))
		return t.rt.Gather(t.ctx, c.Input(0), axis, c.Input(1))
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.GatherGrad(t.ctx, g, axis, c.Input(1), shape...))
	})
}

// Embedding returns the rows of weight (rows, n) that index, int32 or int64 of any shape, names; see
// [tensor.Layers.Embedding]. The index is a constant.
func (t *Tape) Embedding(index, weight *Variable, cfg tensor.EmbeddingConfig) *Variable {
	if !t.begin("Embedding", weight, index) {
		return t.inert()
	}
	e := t.embeddings.take()
	e.cfg = cfg
	return t.apply("Embedding", e, &e.Call, []*Variable{weight, index}, true)
}

// embedding is one use of Embedding, of weight and index.
type embedding struct {
	Call
	cfg tensor.EmbeddingConfig
}

func (e *embedding) forward() (*tensor.Tensor, error) {
	e.Save(e.Input(1))
	return e.tape.rt.Embedding(e.tape.ctx, e.Input(1), e.Input(0), e.cfg)
}

func (e *embedding) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	t, w := e.tape, e.inputs[0]
	if w.needsGrad && w.grad != nil && w.grad.Exclusive() && w.grad.Dtype() == g.Dtype() && g.Dtype().Wide() == 0 { // others are added up in the wide dtype
		w.masked = false
		return nil, t.rt.AddEmbeddingGrad(t.ctx, w.grad, g, e.Input(1), e.cfg)
	}
	var room [2]int
	rows := tensor.AppendShape(room[:0], e.Input(0))[0]
	return e.Grads(t.rt.EmbeddingGrad(t.ctx, g, e.Input(1), rows, e.cfg))
}

func (e *embedding) give(s *slab) { s.embeddings.give(e) }
