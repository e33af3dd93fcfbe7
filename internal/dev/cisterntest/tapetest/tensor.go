package tapetest

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
)

// Wide returns the elements of a tensor of any dtype as float64.
func Wide(b *Bench, x *tensor.Tensor) []float64 {
	b.T.Helper()
	y, err := b.RT.Convert(b.Ctx, x, tensor.Float64)
	require.NoError(b.T, err)
	defer y.Release()
	return Read[float64](b, y)
}

// RequireNear compares numbers except for rounding in float64.
func RequireNear(t *testing.T, want, got []float64, format string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, w := range want {
		if !Near(w, got[i], 1e-11) {
			require.Failf(t, "wrong", "element %d is %v, want %v: "+format, append([]any{i, got[i], w}, args...)...)
		}
	}
}

// Near reports whether two numbers are equal except for rounding.
func Near(want, got, tolerance float64) bool {
	return math.Abs(want-got) <= tolerance*(1+math.Abs(want))
}

// Upload makes a tensor of data. The end of the test releases it.
func Upload[T tensor.Element](b *Bench, data []T, shape ...int) *tensor.Tensor {
	b.T.Helper()
	x, err := tensor.FromSlice(b.Ctx, b.RT, data, shape...)
	require.NoError(b.T, err)
	b.T.Cleanup(func() { assert.NoError(b.T, x.Release()) })
	return x
}

// Read returns the elements of a tensor.
func Read[T tensor.Element](b *Bench, x *tensor.Tensor) []T {
	b.T.Helper()
	s, err := tensor.ToSlice[T](b.Ctx, x, nil)
	require.NoError(b.T, err)
	return s
}

// Elements returns the number of elements of a shape.
func Elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// Transpose returns the options that transpose the first factor, the second, both or none.
func Transpose(first, second bool) (o tensor.MatMulOption) {
	if first {
		o = tensor.TransA
	}
	if second {
		o |= tensor.TransB
	}
	return o
}

// ValueOr returns *p, or standard if p is nil.
func ValueOr(p *float64, standard float64) float64 {
	if p == nil {
		return standard
	}
	return *p
}
