package autograd

import "github.com/cistern-ml/cistern/tensor"

// IndexSelect returns the elements of x at the places of a dimension that index names, int32 or int64; see
// [tensor.Runtime.IndexSelect]. The index is a constant.
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

// Gather returns the elements that index, int32 or int64, chooses along a dimension of x; see [tensor.Runtime.Gather]. The
// index is a constant.
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
// [tensor.Runtime.Embedding]. The index is a constant.
func (t *Tape) Embedding(index, weight *Variable, cfg tensor.EmbeddingConfig) *Variable {
	rows := 0
	return t.Func("Embedding", []*Variable{weight, index}, func(c *Call) (*tensor.Tensor, error) {
		y, err := t.rt.Embedding(t.ctx, c.Input(1), c.Input(0), cfg)
		if err == nil {
			rows = c.Input(0).Shape()[0]
		}
		c.Save(c.Input(1))
		return y, err
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.EmbeddingGrad(t.ctx, g, c.Input(1), rows, cfg))
	})
}
