package backendtest

import (
	"context"
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func statisticOps[T kernel.Float]() []operation[T] {
	return []operation[T]{
		{"greatest", greatestTrial[T]}, {"LogSumExp", logSumExpTrial[T]}, {"Var", varTrial[T]}, {"softmax along an axis", axisSoftmaxTrial[T]},
		{"ArgMax along an axis", axisArgMaxTrial[T]},
	}
}

// axes returns some axes of a shape, the shape with these as 1, and the shape without them. No axes
// means all.
func (c *trial[T]) axes(shape []int) (axes, kept, without []int) {
	without = []int{}
	for i, d := range shape {
		if c.rand.IntN(2) == 0 {
			axes, kept = append(axes, i-c.rand.IntN(2)*len(shape)), append(kept, 1)
		} else {
			kept, without = append(kept, d), append(without, d)
		}
	}
	c.rand.Shuffle(len(axes), func(i, j int) { axes[i], axes[j] = axes[j], axes[i] })
	if len(axes) == 0 {
		return nil, slices.Repeat([]int{1}, len(shape)), []int{}
	}
	return axes, kept, without
}

// gradientOf returns an operand for the gradient of a result that dropped the axes, in either
// shape.
func (c *trial[T]) gradientOf(kept, without []int) *operand[T] {
	if c.rand.IntN(2) == 0 {
		return c.operand(kept...)
	}
	return c.operand(without...)
}

func greatestTrial[T kernel.Float](c *trial[T]) {
	if c.rand.IntN(2) == 0 {
		c.kind = tied
	}
	x := c.operand(c.shape()...)
	axes, kept, without := c.axes(x.Shape())
	all := c.rand.IntN(3) == 0
	run := func(ctx context.Context, x *tensor.Tensor, axes ...int) (*tensor.Tensor, error) {
		return c.r.Amax(ctx, x, axes...)
	}
	grad := c.r.AmaxGrad
	if all {
		axes, kept, without = nil, slices.Repeat([]int{1}, len(x.Shape())), []int{}
		run = func(ctx context.Context, x *tensor.Tensor, _ ...int) (*tensor.Tensor, error) { return c.r.Max(ctx, x) }
		grad = func(ctx context.Context, dy, x, y *tensor.Tensor, _ ...int) (*tensor.Tensor, error) {
			return c.r.MaxGrad(ctx, dy, x, y)
		}
	}
	c.dirty()
	y, err := run(c.ctx, x.Tensor, axes...)
	if len(x.data) == 0 && elements(kept) > 0 {
		c.refused("Amax", y, err, tensor.ErrShape)
		return
	}
	want := reference.Statistic(x.array(), kept, func(g []float64) (float64, float64) { return reference.Greatest(g), 0 })
	want.Shape = without
	c.gave("Amax", y, err, want, tolerance{result: 1})
	x.unchanged("Amax")
	dy := c.gradientOf(kept, without)
	want = reference.StatisticGrad(x.array(), kept, func(g []float64, i int) func(v float64) (float64, float64) {
		top := reference.Greatest(g)
		ties := reference.Ties(g, top, all)
		return func(v float64) (float64, float64) {
			switch {
			case ties == 0:
				return math.NaN(), 0
			case reference.Ties([]float64{v}, top, all) == 0:
				return 0, 0
			}
			d := float64(dy.data[i]) / float64(ties)
			return d, math.Abs(d)
		}
	})
	dx, err := grad(c.ctx, dy.Tensor, x.Tensor, y, axes...)
	c.gave("AmaxGrad", dx, err, want, inDouble[T](2))
	dy.unchanged("AmaxGrad")
}

func logSumExpTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	axes, kept, without := c.axes(x.Shape())
	c.dirty()
	y, err := c.r.LogSumExp(c.ctx, x.Tensor, axes...)
	want := reference.Statistic(x.array(), kept, reference.LogSumExp)
	want.Shape = without
	c.gave("LogSumExp", y, err, want, rowSum[T](len(x.data)))
	got := c.elements(y)
	require.NoError(c.t, err)
	dy := c.gradientOf(kept, without)
	want = reference.StatisticGrad(x.array(), kept, func(_ []float64, i int) func(v float64) (float64, float64) {
		return func(v float64) (float64, float64) {
			d := float64(dy.data[i]) * math.Exp(v-float64(got[i]))
			return d, math.Abs(d)
		}
	})
	dx, err := c.r.LogSumExpGrad(c.ctx, dy.Tensor, x.Tensor, y, axes...)
	tol := inDouble[T](8)
	tol.inside = 1
	c.gave("LogSumExpGrad", dx, err, want, tol)
	x.unchanged("LogSumExp")
}

func varTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.shape()...)
	axes, kept, without := c.axes(x.Shape())
	correction := []float64{1, 1, 0, 2, 0.5}[c.rand.IntN(5)]
	c.dirty()
	y, err := c.r.Var(c.ctx, x.Tensor, correction, axes...)
	want := reference.Statistic(x.array(), kept, func(g []float64) (float64, float64) {
		_, squares, size := reference.Moments(g)
		n := math.Max(0, float64(len(g))-correction)
		return squares / n, size / n
	})
	want.Shape = without
	tol := rowSum[T](len(x.data))
	tol.inside = 4 * float64(len(x.data)+1)
	c.gave("Var", y, err, want, tol)
	dy := c.gradientOf(kept, without)
	want = reference.StatisticGrad(x.array(), kept, func(g []float64, i int) func(v float64) (float64, float64) {
		mean, _, _ := reference.Moments(g)
		scale, around := 2/(float64(len(g))-correction)*float64(dy.data[i]), 0.0
		for _, w := range g {
			around += math.Abs(w) / float64(len(g))
		}
		return func(v float64) (float64, float64) {
			return scale * (v - mean), math.Abs(scale) * (math.Abs(v) + around)
		}
	})
	tol.vague = true // a factor that rounds to 0, times an infinite distance
	dx, err := c.r.VarGrad(c.ctx, dy.Tensor, x.Tensor, correction, axes...)
	c.gave("VarGrad", dx, err, want, tol)
	x.unchanged("Var")
}

func axisSoftmaxTrial[T kernel.Float](c *trial[T]) {
	shape := c.ranked()
	axis := c.rand.IntN(len(shape))
	given := axis - c.rand.IntN(2)*len(shape)
	x := c.operand(shape...)
	n := shape[axis]
	c.dirty()
	y, err := c.r.Softmax(c.ctx, x.Tensor, given)
	c.gave("Softmax", y, err, reference.SwapResult(reference.Softmax(reference.Swap(x.array(), axis)), axis), rowSum[T](n))
	y, err = c.r.LogSoftmax(c.ctx, x.Tensor, given)
	c.gave("LogSoftmax", y, err, reference.SwapResult(reference.LogSoftmax(reference.Swap(x.array(), axis)), axis), rowSum[T](n))
	x.unchanged("Softmax")
	dy := c.operand(shape...)
	tol := rowSum[T](n)
	tol.inside = 1
	swapped := reference.Swap(dy.array(), axis)
	dx, err := c.r.SoftmaxGrad(c.ctx, dy.Tensor, x.Tensor, given)
	c.gave("SoftmaxGrad", dx, err, reference.SwapResult(reference.SoftmaxGrad(swapped, reference.Swap(x.array(), axis)), axis), tol)
	// Logarithms of numbers up to e.
	low := c.operandOf(within(slices.Clone(x.data), math.Inf(-1), 1), shape)
	dx, err = c.r.LogSoftmaxGrad(c.ctx, dy.Tensor, low.Tensor, given)
	c.gave("LogSoftmaxGrad", dx, err, reference.SwapResult(reference.LogSoftmaxGrad(swapped, reference.Swap(low.array(), axis)), axis), tol)
	dy.unchanged("SoftmaxGrad")
}

func axisArgMaxTrial[T kernel.Float](c *trial[T]) {
	shape := c.ranked()
	axis := c.rand.IntN(len(shape))
	if c.kind == ordinary {
		c.kind = tied
	}
	x := c.operand(shape...)
	y, err := c.r.ArgMax(c.ctx, x.Tensor, axis)
	if shape[axis] == 0 {
		c.refused("ArgMax", y, err, tensor.ErrShape)
		return
	}
	require.NoError(c.t, err)
	got, err := tensor.ToSlice[int32](c.ctx, y, nil)
	require.NoError(c.t, err)
	kept := slices.Clone(shape)
	kept[axis] = 1
	for i, g := range reference.Groups(x.array(), kept) {
		top := reference.Greatest(g)
		first := slices.IndexFunc(g, func(v float64) bool { return reference.Ties([]float64{v}, top, true) > 0 })
		require.Equal(c.t, int32(first), got[i], "ArgMax of %v along %d", shape, axis)
	}
}
