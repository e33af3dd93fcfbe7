package tensor

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The sum of no elements is 0, whatever its memory held.
func TestSumOfNothing(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	for _, shape := range [][]int{{5, 0}, {0, 5}} {
		dirty, err := r.Full(r.ctx, math.NaN(), Float64, 5)
		require.NoError(t, err)
		x, err := r.Zeros(r.ctx, Float64, shape...)
		require.NoError(t, err)
		require.NoError(t, dirty.Release())
		axis := 0
		if shape[0] == 5 {
			axis = 1
		}
		y, err := r.Sum(r.ctx, x, axis)
		require.Equal(t, make([]float64, 5), get[float64](r, y, err))
	}
}
