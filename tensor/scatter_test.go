package tensor

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestScatterOutside: the next read reports an index outside the dimension once, with its position,
// and the other elements are set.
func TestScatterOutside(t *testing.T) {
	r := newScopedRig(t)
	x, line := put(r, []float32{1, 2, 3, 4}, 2, 2), put(r, []float32{1, 2})
	src, three := put(r, []float32{10, 20, 30, 40}, 2, 2), put(r, []float32{10, 20, 30})
	index, flat := put(r, []int32{0, 7, 1, 0}, 2, 2), put(r, []int64{1, -3, 1}, 3)
	none, zeros := put(r, []float32{}, 0, 2), put(r, []int32{0, 0}, 1, 2)
	for name, c := range map[string]struct {
		do    func() (*Tensor, error)
		want  []float32
		fault string
	}{
		"Scatter":                 {func() (*Tensor, error) { return r.Scatter(r.ctx, x, 1, index, src) }, []float32{10, 2, 40, 30}, "index 7 at element 1"},
		"ScatterGrad":             {func() (*Tensor, error) { return r.ScatterGrad(r.ctx, x, 1, index) }, []float32{0, 2, 0, 0}, "index 7 at element 1"},
		"ScatterAdd":              {func() (*Tensor, error) { return r.ScatterAdd(r.ctx, x, 1, index, src) }, []float32{11, 2, 43, 34}, "index 7 at element 1"},
		"ScatterAdd to a vector":  {func() (*Tensor, error) { return r.ScatterAdd(r.ctx, line, 0, flat, three) }, []float32{1, 42}, "index -3 at element 1"},
		"OneHot":                  {func() (*Tensor, error) { return r.OneHot(r.ctx, flat, 2, Float32) }, []float32{0, 1, 0, 0, 0, 1}, "index -3 at element 1"},
		"Scatter into nothing":    {func() (*Tensor, error) { return r.Scatter(r.ctx, none, 0, zeros, put(r, []float32{1, 2}, 1, 2)) }, []float32{}, "index 0 at element"},
		"ScatterAdd into nothing": {func() (*Tensor, error) { return r.ScatterAdd(r.ctx, none, 0, zeros, put(r, []float32{1, 2}, 1, 2)) }, []float32{}, "index 0 at element"},
		"ScatterAdd to no vector": {func() (*Tensor, error) {
			return r.ScatterAdd(r.ctx, put(r, []float32{}), 0, flat, three)
		}, []float32{}, "index 1 at element"},
		"OneHot of no classes": {func() (*Tensor, error) { return r.OneHot(r.ctx, flat, 0, Float32) }, []float32{}, "at element"},
	} {
		y, err := c.do()
		require.NoError(t, err, name)
		err = r.Synchronize(r.ctx)
		require.ErrorIs(t, err, ErrIndex, name)
		require.ErrorContains(t, err, c.fault, name)
		assert.Equal(t, c.want, append([]float32{}, get[float32](r, y, nil)...), name)
	}
	_, err := r.OneHot(r.ctx, flat, -1, Float32)
	require.ErrorIs(t, err, ErrInvalid)
	_, err = r.OneHot(r.ctx, flat, 2, 0)
	require.ErrorIs(t, err, ErrDtype)
}

// TestScatterOfLongColumns: few long columns are processed in parallel on a GPU, yet the last
// element stays, and sums are those of additions one after the other, bit for bit.
func TestScatterOfLongColumns(t *testing.T) {
	r := newScopedRig(t)
	random := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct{ rows, length, columns int }{{1, 70, 1}, {7, 5000, 1}, {3000, 5000, 2}, {40, 2049, 3}, {5, 1, 9}} {
		x, src, index := make([]float32, c.rows*c.columns), make([]float32, c.length*c.columns), make([]int64, c.length*c.columns)
		for i := range x {
			x[i] = float32(random.NormFloat64())
		}
		set, sum := slices.Clone(x), slices.Clone(x)
		for i := range index {
			src[i], index[i] = float32(random.NormFloat64()), random.Int64N(int64(c.rows))
			to := int(index[i])*c.columns + i%c.columns
			set[to] = src[i]
			sum[to] += src[i]
		}
		to, from, at := put(r, x, c.rows, c.columns), put(r, src, c.length, c.columns), put(r, index, c.length, c.columns)
		y, err := r.Scatter(r.ctx, to, 0, at, from)
		assert.Equal(t, set, get[float32](r, y, err), "set %v", c)
		y, err = r.ScatterAdd(r.ctx, to, 0, at, from)
		assert.Equal(t, sum, get[float32](r, y, err), "added %v", c)
		vector, err := r.ScatterAdd(r.ctx, put(r, x), 0, put(r, index[:c.length]), put(r, src[:c.length]))
		sum = slices.Clone(x)
		for i, to := range index[:c.length] {
			sum[to] += src[i]
		}
		assert.Equal(t, sum, get[float32](r, vector, err), "added to a vector %v", c)
	}
}
