package backendtest

import (
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func productOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"MatMul", matMulTrial[T]}, {"MatMul", matMulTrial[T]}, {"Transpose", transposeTrial[T]}}
}

// matMulTrial allows an inner product of k terms in T an error of k roundings of the sum of their
// magnitudes.
func matMulTrial[T kernel.Float](c *trial[T]) {
	m, k := c.matrix()
	n, _ := c.matrix()
	transA, transB := c.rand.IntN(2) == 0, c.rand.IntN(2) == 0
	sa, sb := []int{m, k}, []int{k, n}
	if transA {
		sa = []int{k, m}
	}
	if transB {
		sb = []int{n, k}
	}
	a := c.operand(sa...)
	b := a
	if m != n || transA == transB || c.rand.IntN(2) == 0 {
		b = c.operand(sb...)
	} // else a matrix times its transpose
	c.dirty()
	y, err := c.r.MatMul(c.ctx, a.Tensor, b.Tensor, transposing(transA, transB)...)
	c.gave("MatMul", y, err, reference.MatMul(a.array(), b.array(), transA, transB),
		tolerance{terms: float64(k+1) * unit[T](), inside: 1})
	a.unchanged("MatMul")
	b.unchanged("MatMul")
}

func transposeTrial[T kernel.Float](c *trial[T]) {
	rows, cols := c.matrix()
	x := c.operand(rows, cols)
	c.dirty()
	y, err := c.r.Transpose(c.ctx, x.Tensor)
	c.gave("Transpose", y, err, reference.Transpose(x.array()), exact)
	x.unchanged("Transpose")
}
