package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// MatMul returns the product a b of vectors, matrices and batches of matrices, after torch.matmul's
// rules. [tensor.TransA] and [tensor.TransB] transpose the matrices of a factor. See
// [tensor.Layers.MatMul] for the shapes.
func (t *Tape) MatMul(a, b *Variable, options ...tensor.MatMulOption) *Variable {
	var all tensor.MatMulOption
	for _, o := range options {
		all |= o
	}
	transA, transB := all&tensor.TransA != 0, all&tensor.TransB != 0
	if a.Rank() == 2 && b.Rank() == 2 {
		return opMatMul.Apply(t, matMul{transA, transB}, a, b)
	}
	return opMatMulBatch.Apply(t, matMulBatch{transA, transB}, a, b)
}

// matMul is the product of two matrices.
type matMul struct{ transA, transB bool }

var opMatMul = newOp[matMul]("MatMul")

func (*matMul) Saves(c *Call) { c.saveForOther() }

func (m *matMul) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().MatMul(c.Context(), c.Input(0), c.Input(1), transpose(m.transA, m.transB))
}

func (m *matMul) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, a, b := c.Runtime(), c.Context(), c.Input(0), c.Input(1)
	if c.NeedsGrad(1) {
		x, y, tx, ty := a, g, !m.transA, false
		if m.transB {
			x, y, tx, ty = g, a, true, m.transA
		}
		d, err := rt.MatMul(ctx, x, y, transpose(tx, ty))
		c.Done(0)
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	if c.NeedsGrad(0) {
		x, y, tx, ty := g, b, false, !m.transB
		if m.transA {
			x, y, tx, ty = b, g, m.transB, true
		}
		d, err := rt.MatMul(ctx, x, y, transpose(tx, ty))
		if err := c.Give(0, d, err); err != nil {
			return err
		}
	}
	c.Free(g)
	return nil
}

// transpose returns the options that transpose the first factor, the second, both or none.
func transpose(first, second bool) (o tensor.MatMulOption) {
	if first {
		o = tensor.TransA
	}
	if second {
		o |= tensor.TransB
	}
	return o
}

// AddBias returns x + bias for every row of x (rows, …, n); bias has n elements.
//
//go:noinline // as Add
func (t *Tape) AddBias(x, bias *Variable) *Variable { return opAddBias.Apply(t, addBias{}, x, bias) }

type addBias struct{}

var opAddBias = newOp[addBias]("AddBias")

func (*addBias) Saves(*Call) {}

func (*addBias) Forward(c *Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	return c.Runtime().AddBias(c.Context(), c.Input(0), c.Input(1))
}

func (*addBias) Backward(c *Call, g *tensor.Tensor) error {
	if c.NeedsGrad(1) {
		d, err := c.Runtime().SumTo(c.Context(), g, c.Input(1).Shape()...)
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	return c.Give(0, g, nil)
}

// outer returns aᵀ b over all rows of a and b.
func (c *Call) outer(a, b *tensor.Tensor) (*tensor.Tensor, error) {
	a, err := c.matrix(a)
	if err != nil {
		return nil, err
	}
	defer c.Free(a)
	if b, err = c.matrix(b); err != nil {
		return nil, err
	}
	defer c.Free(b)
	return c.Runtime().MatMul(c.Context(), a, b, tensor.TransA)
}

// matrix returns a view of x as (rows, columns).
func (c *Call) matrix(x *tensor.Tensor) (*tensor.Tensor, error) {
	shape := x.Shape()
	last := len(shape) - 1
	return c.Runtime().Reshape(c.Context(), x, elements(shape[:last]), shape[last])
}

// Transpose returns x with two dimensions exchanged (torch.transpose); without dims, the transpose
// of the matrix x.
func (t *Tape) Transpose(x *Variable, dims ...int) *Variable {
	return opTranspose.Apply(t, transposed{newDimensions(dims)}, x)
}

type transposed struct{ dims dimensions }

var opTranspose = newOp[transposed]("Transpose")

func (*transposed) Saves(*Call) {}

func (s *transposed) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Transpose(c.Context(), c.Input(0), s.dims.list()...)
}

func (s *transposed) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().Transpose(c.Context(), g, s.dims.list()...)
	return c.GiveReplacing(0, g, d, err)
}

// Reshape returns x with another shape, in the same memory. One dimension may be -1.
func (t *Tape) Reshape(x *Variable, shape ...int) *Variable {
	return opReshape.Apply(t, reshape{newDimensions(shape)}, x)
}

type reshape struct{ shape dimensions }

var opReshape = newOp[reshape]("Reshape")

func (*reshape) view() {}

func (*reshape) Saves(*Call) {}

func (s *reshape) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Reshape(c.Context(), c.Input(0), s.shape.list()...)
}

func (*reshape) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().Reshape(c.Context(), g, c.dims(c.Input(0))...)
	return c.GiveReplacing(0, g, d, err)
}

// BMM returns the products of two batches with the same number of matrices, (n, m, k) and (n, k, p)
// (torch.bmm). [tensor.TransA] and [tensor.TransB] transpose a factor's matrices. BMM does not
// broadcast, unlike [Tape.MatMul].
func (t *Tape) BMM(a, b *Variable, options ...tensor.MatMulOption) *Variable {
	if !t.begin("BMM", a, b) {
		return t.inert()
	}
	if x, y := a.Shape(), b.Shape(); len(x) != 3 || len(y) != 3 || x[0] != y[0] {
		t.fail("BMM", fmt.Errorf("%w: %v and %v: want two batches with the same number of matrices", tensor.ErrShape, x, y))
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
// If all matrices of A are multiplied by the same B, they are treated as one matrix.
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

// viewed returns f of x in another shape.
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

// elements returns the number of elements of a shape.
func elements(shape tensor.Shape) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}
