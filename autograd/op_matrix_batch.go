package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// BMM returns the products of two batches of as many matrices, (n, m, k) and (n, k, p) (torch.bmm);
// [tensor.TransA] and [tensor.TransB] transpose a factor's matrices. Nothing broadcasts:
// [Tape.MatMul] does.
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
type matMulBatch struct{ transA, transB bool }

var opMatMulBatch = newOp[matMulBatch]("MatMul")

func (*matMulBatch) Saves(c *Call) { c.saveForOther() }

func (m *matMulBatch) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().MatMul(c.Context(), c.Input(0), c.Input(1), transpose(m.transA, m.transB))
}

// Backward gives g Bᵀ and Aᵀ g for each matrix of the batch; Give sums over broadcast dimensions.
// If all matrices of A meet the same B, they are multiplied as one matrix.
func (m *matMulBatch) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, a, b := c.Runtime(), c.Context(), c.Input(0), c.Input(1)
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
	if len(right) == 2 && !m.transA {
		rows := func(s tensor.Shape) tensor.Shape { return tensor.Shape{elements(s[:len(s)-1]), s[len(s)-1]} }
		left, result = rows(left), rows(result)
	}
	dy, err := rt.Reshape(ctx, g, result...)
	c.Free(g)
	if err != nil {
		return err
	}
	defer c.Free(dy)
	if c.NeedsGrad(0) {
		d, err := c.viewed(b, right, func(y *tensor.Tensor) (*tensor.Tensor, error) {
			if m.transA {
				return rt.MatMul(ctx, y, dy, transpose(m.transB, true))
			}
			return rt.MatMul(ctx, dy, y, transpose(false, !m.transB))
		})
		if err := c.giveUnfolded(0, d, err, vectorA && len(result) > 2, -2); err != nil {
			return err
		}
	}
	if !c.NeedsGrad(1) {
		return nil
	}
	d, err := c.viewed(a, left, func(x *tensor.Tensor) (*tensor.Tensor, error) {
		if m.transB {
			return rt.MatMul(ctx, dy, x, transpose(true, m.transA))
		}
		return rt.MatMul(ctx, x, dy, transpose(!m.transA, false))
	})
	return c.giveUnfolded(1, d, err, vectorB && len(result) > 2, -1)
}

// viewed is f of x with another shape.
func (c *Call) viewed(x *tensor.Tensor, shape tensor.Shape, f func(*tensor.Tensor) (*tensor.Tensor, error)) (*tensor.Tensor, error) {
	v, err := c.Runtime().Reshape(c.Context(), x, shape...)
	if err != nil {
		return nil, err
	}
	defer c.Free(v)
	return f(v)
}

// giveUnfolded gives factor i its gradient d in the factor's shape. If the factor is a vector and
// the other one a batch, d becomes a batch of vectors: the dimension of 1 at axis is removed.
func (c *Call) giveUnfolded(i int, d *tensor.Tensor, err error, batch bool, axis int) error {
	if err != nil {
		return err
	}
	shape, factor := d.Shape(), c.Input(i).Shape()
	switch {
	case batch:
		at := len(shape) + axis
		shape = slices.Delete(shape, at, at+1)
	case d.Elements() == elements(factor):
		shape = factor
	}
	y, err := c.Runtime().Reshape(c.Context(), d, shape...)
	return c.GiveReplacing(i, d, y, err)
}

// elements is the number of elements of a shape.
func elements(shape tensor.Shape) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
