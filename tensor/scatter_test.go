package tensor

import (
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
