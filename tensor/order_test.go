package tensor

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// newScopedRig is a rig whose tensors are released with the test.
func newScopedRig(t *testing.T) *rig {
	r := newRig(t, 64<<20)
	ctx, life := WithLifetime(r.ctx)
	t.Cleanup(func() { assert.NoError(t, life.Close()) })
	r.ctx = ctx
	return r
}

// TestOrderIsCaptured: a replay sorts and adds the current content of its input, and records its
// own faults.
func TestOrderIsCaptured(t *testing.T) {
	r := newScopedRig(t)
	x, index := put(r, []float32{0, 0, 0, 0}, 2, 2), put(r, []int32{1, 1, 0, 0}, 2, 2)
	var values, places, sum *Tensor
	g := r.capture(r.ctx, func(ctx context.Context) (err error) {
		if values, places, err = r.Sort(ctx, x, 1, true); err == nil {
			sum, err = r.ScatterAdd(ctx, x, 1, index, values)
		}
		return err
	})
	for _, v := range []float32{1, 5} {
		require.NoError(t, CopyFrom(r.ctx, x, []float32{v, 2, 3, 4}))
		require.NoError(t, g.Replay(r.ctx))
		assert.Equal(t, []float32{max(v, 2), min(v, 2), 4, 3}, get[float32](r, values, nil))
		assert.Equal(t, v > 2, get[int32](r, places, nil)[0] == 0)
		assert.Equal(t, []float32{v, 4 + v, 10, 4}, get[float32](r, sum, nil))
	}
	require.NoError(t, CopyFrom(r.ctx, index, []int32{1, 2, 0, 0}))
	require.NoError(t, g.Replay(r.ctx))
	require.ErrorIs(t, r.Synchronize(r.ctx), ErrIndex)
}

// TestSortOfLongRows: a GPU sorts 70,000 elements in runs, the last of which is not full, and equal
// elements keep their order.
func TestSortOfLongRows(t *testing.T) {
	r := newScopedRig(t)
	const n = 70_000
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(i * 7919 % 1009)
	}
	x := put(r, data, 1, n)
	values, index, err := r.Sort(r.ctx, x, -1, false)
	require.NoError(t, err)
	got, at := get[float32](r, values, nil), get[int32](r, index, nil)
	for i := range n {
		require.Equal(t, data[at[i]], got[i])
		require.False(t, i > 0 && (got[i-1] > got[i] || got[i-1] == got[i] && at[i-1] >= at[i]), "elements %d and %d", i-1, i)
	}
	top, place, err := r.TopK(r.ctx, x, 3, 1, true)
	require.NoError(t, err)
	assert.Equal(t, []float32{1008, 1008, 1008}, get[float32](r, top, nil))
	all := get[int32](r, place, nil)
	require.True(t, all[0] < all[1] && all[1] < all[2], "the first of those that tie: %v", all)
	// A GPU takes k elements of each run, until one run is left; with many k it sorts all.
	for _, k := range []int{1, 50, 1000, 1024, 1025} {
		values, place, err := r.TopK(r.ctx, x, k, 1, false)
		require.NoError(t, err)
		assert.Equal(t, got[:k], get[float32](r, values, nil), "the %d smallest", k)
		assert.Equal(t, at[:k], get[int32](r, place, nil), "the %d smallest", k)
	}
	dx, err := r.SortGrad(r.ctx, values, 1, index, 1, n)
	require.NoError(t, err)
	assert.Equal(t, data, get[float32](r, dx, nil), "the gradient undoes the sort")
}

// TestSortOfNaN: all NaNs are equal, and the greatest number, whatever their bits.
func TestSortOfNaN(t *testing.T) {
	r := newScopedRig(t)
	x := put(r, []float64{math.NaN(), math.Inf(1), math.Float64frombits(0xfff8 << 48), -1, math.Copysign(0, -1), 0}, 6)
	for descending, want := range map[bool][]int32{false: {3, 4, 5, 1, 0, 2}, true: {0, 2, 1, 4, 5, 3}} {
		_, index, err := r.Sort(r.ctx, x, 0, descending)
		assert.Equal(t, want, get[int32](r, index, err))
	}
}

// TestTopKOfAScalar: PyTorch returns the scalar for a k of 0, too. The index is written, because
// memory that is used again has other numbers.
func TestTopKOfAScalar(t *testing.T) {
	r := newScopedRig(t)
	x, err := r.Full(r.ctx, 3, Float32)
	require.NoError(t, err)
	for _, k := range []int{0, 1} {
		require.NoError(t, put(r, []int32{7}).Release())
		values, index, err := r.TopK(r.ctx, x, k, -1, true)
		require.NoError(t, err)
		assert.Equal(t, []float32{3}, get[float32](r, values, nil))
		assert.Equal(t, []int32{0}, get[int32](r, index, nil))
		assert.Empty(t, values.Shape())
	}
}

// TestPartsOfLongRows: a GPU cuts few long rows into parts. The first of equal elements counts, in
// any part, and NaN before all others. The 50 greatest are those of a stable sort.
func TestPartsOfLongRows(t *testing.T) {
	r := newScopedRig(t)
	random := rand.New(rand.NewPCG(5, 6))
	for _, c := range []struct{ rows, cols int }{{1, 300_001}, {3, 20_000}, {40, 2500}} {
		data := make([]float64, c.rows*c.cols)
		for i := range data {
			data[i] = float64(random.IntN(2001) - 1000) // so that sums are exact
		}
		x := put(r, data, c.rows, c.cols)
		greatest, least := make([]float64, c.rows), make([]float64, c.rows)
		first, last := make([]int32, c.rows), make([]int32, c.rows)
		sums, back := slices.Clone(data), slices.Clone(data)
		for i := range c.rows {
			row := data[i*c.cols:][:c.cols]
			greatest[i], least[i] = slices.Max(row), slices.Min(row)
			first[i], last[i] = int32(slices.Index(row, greatest[i])), int32(slices.Index(row, least[i]))
			for j := 1; j < c.cols; j++ {
				sums[i*c.cols+j] += sums[i*c.cols+j-1]
				back[(i+1)*c.cols-1-j] += back[(i+1)*c.cols-j]
			}
		}
		y, err := r.Amax(r.ctx, x, 1)
		assert.Equal(t, greatest, get[float64](r, y, err))
		y, err = r.Amin(r.ctx, x, 1)
		assert.Equal(t, least, get[float64](r, y, err))
		y, err = r.Max(r.ctx, x)
		assert.Equal(t, slices.Max(data), get[float64](r, y, err)[0])
		y, err = r.ArgMax(r.ctx, x)
		assert.Equal(t, first, get[int32](r, y, err))
		y, err = r.ArgMin(r.ctx, x)
		assert.Equal(t, last, get[int32](r, y, err))
		y, err = r.CumSum(r.ctx, x, 1)
		assert.Equal(t, sums, get[float64](r, y, err))
		y, err = r.CumSumGrad(r.ctx, x, 1)
		assert.Equal(t, back, get[float64](r, y, err))

		places := make([]int32, c.cols)
		for j := range places {
			places[j] = int32(j)
		}
		slices.SortStableFunc(places, func(a, b int32) int { return cmp.Compare(data[b], data[a]) })
		_, index, err := r.TopK(r.ctx, x, 50, 1, true)
		assert.Equal(t, places[:50], get[int32](r, index, err)[:50])

		at := random.IntN(c.cols)
		data[at] = math.NaN()
		x = put(r, data, c.rows, c.cols)
		y, err = r.ArgMin(r.ctx, x)
		assert.EqualValues(t, at, get[int32](r, y, err)[0])
		y, err = r.Amin(r.ctx, x)
		assert.True(t, math.IsNaN(get[float64](r, y, err)[0]))
	}
	none, err := r.Amax(r.ctx, put(r, []float32{}, 3, 0), 0)
	require.NoError(t, err)
	assert.Empty(t, get[float32](r, none, nil))
}
