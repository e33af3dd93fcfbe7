package backendtest

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func reductionOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"Sum", func(c *trial[T]) { axesTrial(c, false) }}, {"Mean", func(c *trial[T]) { axesTrial(c, true) }},
		{"SumTo", sumToTrial[T]}, {"SumTo of columns", columnsTrial[T]}, {"BroadcastTo", broadcastToTrial[T]},
	}
}

// sumOf is the tolerance of pairwise sums of n terms in float64, whose errors grow with the
// logarithm of n.
func sumOf[T kernel.Float](n int, divisor float64) tolerance {
	tol := inDouble[T](2)
	tol.terms = (8 + math.Log2(float64(max(1, n)))) * 0x1p-53
	if !single[T]() {
		tol.inside = max(1, divisor)
	}
	return tol
}

func axesTrial[T kernel.Float](c *trial[T], mean bool) {
	x := c.operand(c.shape()...)
	var axes []int
	kept := make([]int, len(x.Shape()))
	without := []int{}
	for i, d := range x.Shape() {
		kept[i] = d
		if c.rand.IntN(2) == 0 {
			axes, kept[i] = append(axes, i), 1
		} else {
			without = append(without, d)
		}
	}
	if len(axes) == 0 { // means all
		without = nil
		for i := range kept {
			kept[i] = 1
		}
	}
	for i := range axes {
		if c.rand.IntN(2) == 0 {
			axes[i] -= len(x.Shape())
		}
	}
	c.rand.Shuffle(len(axes), func(i, j int) { axes[i], axes[j] = axes[j], axes[i] })
	terms := 1
	for i, d := range x.Shape() {
		if kept[i] == 1 {
			terms *= d
		}
	}
	divisor, op, run := 1.0, "Sum", c.r.Sum
	if mean {
		divisor, op, run = float64(terms), "Mean", c.r.Mean
	}
	want := reference.SumTo(x.array(), kept, divisor)
	want.Shape = without
	c.dirty()
	y, err := run(c.ctx, x.Tensor, axes...)
	c.gave(op, y, err, want, sumOf[T](terms, divisor))
	x.unchanged(op)
}

func sumToTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	to := c.narrowed(x.Shape())
	c.dirty()
	y, err := c.r.SumTo(c.ctx, x.Tensor, to...)
	c.gave("SumTo", y, err, reference.SumTo(x.array(), to, 1), sumOf[T](len(x.data), 1))
	x.unchanged("SumTo")
}

// columnsTrial has multiples of the number of columns that a GPU loads together, and other numbers.
func columnsTrial[T kernel.Float](c *trial[T]) {
	columns := 8 * (1 + c.rand.IntN(12))
	if c.rand.IntN(4) == 0 {
		columns += c.rand.IntN(8)
	}
	x := c.operand(1+c.rand.IntN(600), columns)
	c.dirty()
	y, err := c.r.SumTo(c.ctx, x.Tensor, columns)
	c.gave("SumTo", y, err, reference.SumTo(x.array(), []int{columns}, 1), sumOf[T](len(x.data)/columns, 1))
	x.unchanged("SumTo")
}

func broadcastToTrial[T kernel.Float](c *trial[T]) {
	to := c.shape()
	x := c.operand(c.narrowed(to)...)
	c.dirty()
	y, err := c.r.BroadcastTo(c.ctx, x.Tensor, to...)
	c.gave("BroadcastTo", y, err, reference.BroadcastTo(x.array(), to), exact)
	x.unchanged("BroadcastTo")
}
