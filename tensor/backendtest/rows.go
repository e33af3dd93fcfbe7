package backendtest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func rowOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"Softmax", softmaxTrial[T]}, {"ArgMax", argMaxTrial[T]}, {"CrossEntropy", crossEntropyTrial[T]}}
}

// ranked returns a shape with at least one dimension.
func (c *trial[T]) ranked() []int {
	shape := c.shape()
	if len(shape) == 0 {
		return []int{1 + c.rand.IntN(5)}
	}
	return shape
}

// rowSum is the tolerance of sums of n numbers in float64 that are rounded to T at the end.
func rowSum[T kernel.Float](n int) tolerance {
	tol := inDouble[T](2)
	tol.terms = (16 + math.Log2(float64(max(1, n)))) * 0x1p-53
	return tol
}

func softmaxTrial[T kernel.Float](c *trial[T]) {
	x := c.operand(c.ranked()...)
	c.dirty()
	y, err := c.r.Softmax(c.ctx, x.Tensor)
	c.gave("Softmax", y, err, reference.Softmax(x.array()), rowSum[T](x.Shape()[len(x.Shape())-1]))
	x.unchanged("Softmax")
}

func argMaxTrial[T kernel.Float](c *trial[T]) {
	for c.kind = range kinds {
		argMaxOf(c, c.operand(c.ranked()...))
	}
}

func argMaxOf[T kernel.Float](c *trial[T], x *operand[T]) {
	last := len(x.Shape()) - 1
	c.dirty()
	y, err := c.r.ArgMax(c.ctx, x.Tensor)
	if x.Shape()[last] == 0 {
		c.refused("ArgMax", y, err, tensor.ErrShape)
		return
	}
	require.NoError(c.t, err)
	require.Equal(c.t, tensor.Int32, y.Dtype())
	require.Equal(c.t, append([]int{}, x.Shape()[:last]...), append([]int{}, y.Shape()...))
	got, err := tensor.ToSlice[int32](c.ctx, y, nil)
	require.NoError(c.t, err)
	require.Equal(c.t, reference.ArgMax(x.array()), append([]int32{}, got...), "ArgMax of %v", x.data)
	x.unchanged("ArgMax")
}

// classes returns logits and labels, and whether a label is out of range.
func (c *trial[T]) classes() (logits *operand[T], labels []int32, on *tensor.Tensor, bad bool) {
	rows, cols := c.matrix()
	logits, labels = c.operand(rows, cols), make([]int32, rows)
	for i := range labels {
		labels[i] = int32(c.rand.IntN(max(1, cols)))
		if c.rand.IntN(200) == 0 {
			labels[i] = []int32{-1, int32(cols), math.MinInt32, math.MaxInt32}[c.rand.IntN(4)]
		}
		bad = bad || labels[i] < 0 || int(labels[i]) >= cols
	}
	on, err := c.r.New(c.ctx, tensor.Int32, rows)
	require.NoError(c.t, err)
	require.NoError(c.t, tensor.CopyFrom(c.ctx, on, labels))
	return logits, labels, on, bad
}

func crossEntropyTrial[T kernel.Float](c *trial[T]) {
	logits, labels, on, bad := c.classes()
	c.dirty()
	loss, err := c.r.CrossEntropy(c.ctx, logits.Tensor, on)
	require.NoError(c.t, err)
	if bad {
		require.ErrorIs(c.t, c.r.Synchronize(c.ctx), tensor.ErrLabel)
	}
	tol := rowSum[T](len(logits.data))
	tol.inside = 1
	c.gave("CrossEntropy", loss, err, reference.CrossEntropy(logits.array(), labels), tol)
	logits.unchanged("CrossEntropy")
}
