package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// BMM returns the products of two batches of as many matrices, (n, m, k) and (n, k, p) (torch.bmm); [tensor.TransA] and
// [tensor.TransB] transpose a factor's matrices. Nothing broadcasts: [Tape.MatMul] does.
func (t *Tape) BMM(a, b *Variable, options ...tensor.MatMulOption) *Variable {
	if !t.begin("BMM", a, b) {
		return t.inert()
	}
	if x, y := a.Shape(), b.Shape(); len(x) != 3 || len(y) != 3 || x[0] != y[0] {
		t.fail("BMM", fmt.Errorf("%w: %v and %v: want two batches of as many matrices", tensor.ErrShape, x, y))
		return t.inert()
	}
	return t.MatMul(a, b, options...)
}

// matMulBatch is MatMul where a factor is a vector, or a batch of matrices.
func (t *Tape) matMulBatch(a, b *Variable, all tensor.MatMulOption) *Variable {
	return t.Func("MatMul", []*Variable{a, b}, func(c *Call) (*tensor.Tensor, error) {
		if c.NeedsGrad(1) {
			c.Save(c.Input(0))
		}
		if c.NeedsGrad(0) {
			c.Save(c.Input(1))
		}
		return t.rt.MatMul(t.ctx, c.Input(0), c.Input(1), all)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		p := product{t: t, transA: all&tensor.TransA != 0, transB: all&tensor.TransB != 0}
		defer p.free()
		return p.grads(c, g)
	})
}

// product is the backward step of a product of batches.
type product struct {
	t              *Tape
	transA, transB bool
	views          []*tensor.Tensor // made on the way
}

func (p *product) free() {
	for _, v := range p.views {
		p.t.free(v)
	}
}

// view is x with another shape.
func (p *product) view(x *tensor.Tensor, err error, shape ...int) (*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	v, err := p.t.rt.Reshape(p.t.ctx, x, shape...)
	if err == nil {
		p.views = append(p.views, v)
	}
	return v, err
}

// grads are g Bᵀ and Aᵀ g, for each matrix of the batch; what was broadcast is summed by the caller. If all matrices of A
// meet the same B, they are one matrix.
func (p *product) grads(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
	a, b := c.inputs[0].value, c.inputs[1].value
	left, right := a.Shape(), b.Shape()
	result := g.Shape()
	vectorA, vectorB := len(left) == 1, len(right) == 1
	if vectorB {
		right = tensor.Shape{right[0], 1}
		result = append(result, 1)
	}
	if vectorA {
		left = tensor.Shape{1, left[0]}
		result = slices.Insert(result, len(result)-1, 1)
	}
	if len(right) == 2 && !p.transA {
		rows := func(s tensor.Shape) tensor.Shape { return tensor.Shape{elements(s[:len(s)-1]), s[len(s)-1]} }
		left, result = rows(left), rows(result)
	}
	g, err := p.view(g, nil, result...)
	grads := make([]*tensor.Tensor, 2)
	if c.NeedsGrad(0) && err == nil {
		var d, y *tensor.Tensor
		if y, err = p.view(b, err, right...); err == nil {
			if p.transA {
				d, err = p.t.rt.MatMul(p.t.ctx, y, g, transpose(p.transB, true))
			} else {
				d, err = p.t.rt.MatMul(p.t.ctx, g, y, transpose(false, !p.transB))
			}
		}
		grads[0], err = p.unfold(d, err, a.Shape(), vectorA && len(result) > 2, -2)
	}
	if c.NeedsGrad(1) && err == nil {
		var d, x *tensor.Tensor
		if x, err = p.view(a, err, left...); err == nil {
			if p.transB {
				d, err = p.t.rt.MatMul(p.t.ctx, g, x, transpose(true, p.transA))
			} else {
				d, err = p.t.rt.MatMul(p.t.ctx, x, g, transpose(!p.transA, false))
			}
		}
		grads[1], err = p.unfold(d, err, b.Shape(), vectorB && len(result) > 2, -1)
	}
	if err != nil {
		p.views = append(p.views, grads...)
	}
	return grads, err
}

// unfold is the gradient d, which it takes over, in the shape of its factor; for a vector that met a batch, in that of a
// batch of vectors, without the dimension of 1 at axis.
func (p *product) unfold(d *tensor.Tensor, err error, factor tensor.Shape, batch bool, axis int) (*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	p.views = append(p.views, d)
	shape := d.Shape()
	switch {
	case batch:
		at := len(shape) + axis
		shape = slices.Delete(shape, at, at+1)
	case d.Elements() == elements(factor):
		shape = factor
	}
	return p.t.rt.Reshape(p.t.ctx, d, shape...)
}

// elements is the number of elements of a shape.
func elements(shape tensor.Shape) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
