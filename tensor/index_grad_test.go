package tensor

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestScannedGradientsAreThoseOfASortedIndex, bit for bit. A GPU computes the gradient of a few
// rows in one launch without a sorted index. It equals the first rows of a gradient with so many
// rows that the index is sorted. The test reaches the limits of both.
func TestScannedGradientsAreThoseOfASortedIndex(t *testing.T) {
	launches := map[string]int{}
	r := newRig(t, 256<<20).counting(launches).scoped()
	scans := 0
	if _, onHost := r.dev.(device.HostVisible); !onHost {
		scans = 1
	}
	random := rand.New(rand.NewPCG(8, 9))
	for _, c := range []struct{ rows, places, n int }{{65, 512, 40}, {1, 300, 3}, {128, 2048, 33}, {9, 1, 1}, {300, 257, 32}, {2, 8, 70}, {4096, 8, 70}} {
		for _, dtype := range []Dtype{Float32, Float64, BFloat16} {
			t.Run(fmt.Sprintf("%d of %d rows, %v", c.places, c.rows, dtype), func(t *testing.T) {
				index, values := make([]int32, c.places), make([]float64, c.places*c.n)
				for i := range index {
					index[i] = int32(random.IntN(c.rows+2) - 1) // some outside the rows
				}
				for i := range values {
					values[i] = random.NormFloat64()
				}
				places := put(r, index)
				dy, err := r.Convert(r.ctx, put(r, values, c.places, c.n), dtype)
				require.NoError(t, err)
				cfg := EmbeddingConfig{ScaleGradByFreq: random.IntN(2) == 0}
				if c.rows > 2 {
					cfg.PaddingIndex = []int{1}
				}
				gradient := func(rows int) []float64 { // of the first c.rows
					clear(launches)
					d, err := r.EmbeddingGrad(r.ctx, dy, places, rows, cfg)
					require.NoError(t, err)
					first, err := r.Rows(r.ctx, d, 0, c.rows)
					require.NoError(t, err)
					wide, err := r.Convert(r.ctx, first, Float64)
					values := get[float64](r, wide, err)
					require.NoError(t, errors.Join(d.Release(), first.Release(), wide.Release()))
					return values
				}
				few := gradient(c.rows)
				require.Equal(t, [2]int{scans, 1 - scans}, [2]int{launches["scan grad"], launches["sort index"]})
				// Without row c.rows, which only the larger gradient has.
				many := gradient(scannedInAll/c.places + 1)
				require.Equal(t, [2]int{0, 1}, [2]int{launches["scan grad"], launches["sort index"]})
				require.Equal(t, many, few)

				d, err := r.EmbeddingGrad(r.ctx, dy, places, c.rows, cfg)
				require.NoError(t, err)
				onto, err := r.MulScalar(r.ctx, d, -0.75)
				require.NoError(t, err)
				sum, err := r.Add(r.ctx, onto, d)
				require.NoError(t, err)
				require.NoError(t, r.AddEmbeddingGrad(r.ctx, onto, dy, places, cfg))
				want, err := r.Convert(r.ctx, sum, Float64)
				require.NoError(t, err)
				got, err := r.Convert(r.ctx, onto, Float64)
				bits := bytesOf(get[float64](r, want, nil))
				require.Equal(t, bits, bytesOf(get[float64](r, got, err)), "added, -0 among it")

				if c.places >= 2048 { // an emulated GPU is slow with more rows
					most := gradient(scannedInAll / c.places)
					require.Equal(t, scans, launches["scan grad"])
					require.Equal(t, many, most)
				}
			})
		}
	}
	t.Run("more places than are scanned", func(t *testing.T) {
		clear(launches)
		_, err := r.EmbeddingGrad(r.ctx, put(r, make([]float32, scannedPlaces+1), scannedPlaces+1, 1), put(r, make([]int32, scannedPlaces+1)), 1, EmbeddingConfig{})
		require.NoError(t, err)
		require.Equal(t, 1, launches["sort index"])
	})
}

// The limits of one launch that scans: indices, and indices times rows.
const (
	scannedPlaces = 2048
	scannedInAll  = 1 << 18
)

// TestAddEmbeddingGradIsOneLaunch if the index is not sorted, and then allocates no memory.
func TestAddEmbeddingGradIsOneLaunch(t *testing.T) {
	launches := map[string]int{}
	r := newRig(t, 64<<20).counting(launches).scoped()
	_, onHost := r.dev.(device.HostVisible)
	dst, dy, index := put(r, []float32{1, 2, 3, 4}, 2, 2), put(r, []float32{10, 20, 30, 40, 50, 60}, 3, 2), put(r, []int32{1, 1, 5})
	before, version := r.cache.Stats().Allocation.All, dst.Version()
	clear(launches)
	require.NoError(t, r.AddEmbeddingGrad(r.ctx, dst, dy, index, EmbeddingConfig{}))
	if !onHost {
		require.Equal(t, map[string]int{"scan grad onto": 1}, launches)
		require.Equal(t, before.Allocated, r.cache.Stats().Allocation.All.Allocated)
	}
	require.Equal(t, before.Current, r.cache.Stats().Allocation.All.Current)
	require.Equal(t, []float32{1, 2, 43, 64}, get[float32](r, dst, nil))
	require.Greater(t, dst.Version(), version)

	none, version := put(r, []int32{}), dst.Version()
	require.NoError(t, r.AddEmbeddingGrad(r.ctx, dst, put(r, []float32{}, 0, 2), none, EmbeddingConfig{}))
	require.Equal(t, []float32{1, 2, 43, 64}, get[float32](r, dst, nil))
	require.Equal(t, version, dst.Version())
}
