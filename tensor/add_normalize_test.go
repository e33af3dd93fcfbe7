package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// TestAddNormalizeIsOneLaunch on a GPU, also if the sum is in donated memory.
func TestAddNormalizeIsOneLaunch(t *testing.T) {
	launches := map[string]int{}
	r := newRig(t, 64<<20).counting(launches).scoped()
	x, y := put(r, []float32{1, 2, 3, 4}, 2, 2), put(r, []float32{10, 20, 30, 44}, 2, 2)
	cfg := NormConfig{Shape: []int{2}}
	clear(launches)
	Donate(x)
	version := x.Version()
	sum, out, stats, err := r.AddNormalize(r.ctx, x, y, nil, nil, cfg)
	require.NoError(t, err)
	if _, onHost := r.dev.(device.HostVisible); !onHost {
		require.Equal(t, map[string]int{"add normalize": 1}, launches)
	}
	require.Equal(t, []float32{11, 22, 33, 48}, get[float32](r, sum, nil))
	require.Equal(t, x.ptr(), sum.ptr())
	require.Greater(t, x.Version(), version)
	require.InDeltaSlice(t, []float32{-1, 1, -1, 1}, get[float32](r, out, nil), 1e-6)
	require.Equal(t, []float64{16.5, 40.5}, get[float64](r, stats, nil)[:2])

	before := r.cache.Stats().Allocation.All.Current
	_, _, _, err = r.AddNormalize(r.ctx, y, y, put(r, []float32{1, 2, 3}), nil, cfg)
	require.ErrorIs(t, err, ErrShape)
	require.Equal(t, before+1, r.cache.Stats().Allocation.All.Current, "the weights alone")
}

// TestAddNormalizeOutOfMemory leaves no tensors, whichever allocation fails.
func TestAddNormalizeOutOfMemory(t *testing.T) {
	r := newRig(t, 6<<20).scoped()
	x := put(r, make([]float32, 1<<18), 1<<18, 1) // with statistics of 4 MiB
	before, version := r.cache.Stats().Allocation.All.Current, x.Version()
	Donate(x)
	_, _, _, err := r.AddNormalize(r.ctx, x, x, nil, nil, NormConfig{Shape: []int{1}})
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	require.Equal(t, version, x.Version(), "what was given is as it was")
	require.Equal(t, before, r.cache.Stats().Allocation.All.Current)
}

// TestAddNormalizeByItsOperand: if an operand is the weight or the bias, it is read after the sum
// is written, so that the sum is in memory of its own.
func TestAddNormalizeByItsOperand(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	cfg := NormConfig{Shape: []int{4}}
	x, y := put(r, []float32{2, 3, 4, 6}), put(r, []float32{1.5, -1, 2, 1})
	_, want, _, err := r.AddNormalize(r.ctx, x, y, x, y, cfg)
	require.NoError(t, err)
	for _, given := range []*Tensor{x, y} {
		Donate(given)
		sum, out, _, err := r.AddNormalize(r.ctx, x, y, x, y, cfg)
		require.NoError(t, err)
		require.Equal(t, get[float32](r, want, nil), get[float32](r, out, nil))
		require.Equal(t, []float32{3.5, 2, 6, 7}, get[float32](r, sum, nil))
		require.Equal(t, []float32{2, 3, 4, 6}, get[float32](r, x, nil))
		require.Equal(t, []float32{1.5, -1, 2, 1}, get[float32](r, y, nil))
	}
}
