package tensor

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// A row whose additive mask is very negative everywhere, as transformers make (1 - mask) *
// finfo.min of a padded row, attends to all keys alike: the logarithm of the sum of exponentials
// vanishes beside such a score.
func TestAttentionOfRowsThatAMaskHides(t *testing.T) {
	r := newRig(t, 64<<20)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, m := range []float64{-1e15, -1e30, -math.MaxFloat32} {
		for _, sizes := range [][4]int{{1, 4, 2, 1}, {4, 33, 8, 5}, {3, 70, 70, 66}} { // L, S, E, V
			testHiddenRows[float32](r, random, m, sizes, 3e-5)
			testHiddenRows[float64](r, random, m, sizes, 1e-12)
		}
	}
	testHiddenRows[float64](r, random, -math.MaxFloat64, [4]int{4, 33, 8, 5}, 1e-12)
}

// testHiddenRows hides all keys of the even rows, and all keys except the first of the odd ones.
// The products of queries and keys are so small that they vanish beside the mask.
func testHiddenRows[T kernel.Float](r *rig, random *rand.Rand, m float64, sizes [4]int, delta float64) {
	r = r.scoped()
	l, s, e, n := sizes[0], sizes[1], sizes[2], sizes[3]
	numbers := func(rows, cols int, by float64) []T {
		data := make([]T, rows*cols)
		for i := range data {
			data[i] = T(random.NormFloat64() * by)
		}
		return data
	}
	q, k, v, dy, mask := numbers(l, e, 1e-3), numbers(s, e, 1), numbers(s, n, 1), numbers(l, n, 1), make([]T, l*s)
	dq, dk, dv, dmask := make([]float64, l*e), make([]float64, s*e), make([]float64, s*n), make([]float64, l*s)
	for i := range l {
		seen, mean := s, 0.
		if i%2 == 1 {
			seen = 1
		}
		slopes := make([]float64, s)
		for j := range s {
			if mask[i*s+j] = T(m); i%2 == 1 && j == 0 {
				mask[i*s+j] = 0
			}
			for c := range n {
				slopes[j] += float64(dy[i*n+c]) * float64(v[j*n+c])
			}
		}
		for _, slope := range slopes[:seen] {
			mean += slope / float64(seen)
		}
		for j := range seen {
			w := 1 / float64(seen)
			slope := w * (slopes[j] - mean)
			dmask[i*s+j] = slope
			for c := range n {
				dv[j*n+c] += w * float64(dy[i*n+c])
			}
			for x := range e {
				dq[i*e+x] += slope * 0.5 * float64(k[j*e+x])
				dk[j*e+x] += slope * 0.5 * float64(q[i*e+x])
			}
		}
	}
	on := [...]*Tensor{put(r, dy, l, n), put(r, q, l, e), put(r, k, s, e), put(r, v, s, n), put(r, mask, l, s)}
	cfg := AttentionConfig{Scale: 0.5}
	y, sums, err := r.ScaledDotProductAttention(r.ctx, on[1], on[2], on[3], on[4], cfg)
	require.NoError(r.t, err)
	for _, ofMask := range []bool{true, false} {
		g, err := r.ScaledDotProductAttentionGrad(r.ctx, on[0], y, sums, on[1], on[2], on[3], on[4], cfg, ofMask)
		require.InDeltaSlice(r.t, dq, get[T](r, g.Query, err), delta, "the gradient of the queries, %g, %v", m, sizes)
		require.InDeltaSlice(r.t, dk, get[T](r, g.Key, err), delta, "the gradient of the keys, %g, %v", m, sizes)
		require.InDeltaSlice(r.t, dv, get[T](r, g.Value, err), delta, "the gradient of the values, %g, %v", m, sizes)
		if ofMask {
			require.InDeltaSlice(r.t, dmask, get[T](r, g.Mask, err), delta, "the gradient of the mask")
		}
	}
}

// Equal scores that are very large, or very negative, have equal weights, and keys after the last
// one have none.
func TestAttentionOfLargeScores(t *testing.T) {
	r := newRig(t, 64<<20)
	testLargeScores(r, func(v float32) float32 { return v })
	testLargeScores(r, func(v float32) float64 { return float64(v) })
	testLargeScores(r, ToBF16)
}

func testLargeScores[E Element](r *rig, of func(float32) E) {
	r = r.scoped()
	fill := func(v float32, shape ...int) *Tensor {
		data := make([]E, elements(shape))
		for i := range data {
			data[i] = of(v)
		}
		return put(r, data, shape...)
	}
	for _, sizes := range [][4]int{{3, 16, 8, 8}, {40, 64, 64, 64}, {33, 128, 100, 100}} {
		l, s, e, n := sizes[0], sizes[1], sizes[2], sizes[3]
		q, k, v, dy := fill(29952, l, e), fill(1<<20, s, e), fill(1, s, n), fill(1, l, n)
		for _, scale := range []float64{1e4, -1e4} {
			y, sums, err := r.ScaledDotProductAttention(r.ctx, q, k, v, nil, AttentionConfig{Scale: scale})
			require.NoError(r.t, err)
			g, err := r.ScaledDotProductAttentionGrad(r.ctx, dy, y, sums, q, k, v, nil, AttentionConfig{Scale: scale}, false)
			require.NoError(r.t, err)
			for _, d := range get[E](r, g.Value, nil) {
				require.InEpsilon(r.t, float64(l)/float64(s), asFloat(d), 0.01, "%T, %v", d, sizes)
			}
			for _, d := range get[E](r, g.Query, nil) {
				require.False(r.t, math.IsNaN(asFloat(d)), "%T, %v, %g", d, sizes, scale)
			}
		}
	}
}

func asFloat(v any) float64 {
	switch v := v.(type) {
	case float32:
		return float64(v)
	case BF16:
		return float64(v.Float32())
	}
	return v.(float64)
}
