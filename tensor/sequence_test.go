package tensor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestAttentionOfGreaterAndGreaterScores scales down the sums of earlier tiles of keys.
func TestAttentionOfGreaterAndGreaterScores(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const keys = 200
	k, v, none := make([]float64, keys), make([]float64, keys), make([]float64, keys)
	for i := range k {
		k[i], v[i] = float64(i)/50, float64(i%7)
	}
	y, sums, err := r.ScaledDotProductAttention(r.ctx, put(r, []float64{1}, 1, 1), put(r, k, keys, 1), put(r, v, keys, 1), nil, AttentionConfig{})
	require.NoError(t, err)
	require.Equal(t, Shape{1, 2}, sums.Shape())
	array := func(data []float64, shape ...int) reference.Array { return reference.Array{Shape: shape, Data: data} }
	want := reference.Attention(reference.Attending{Q: array([]float64{1}, 1, 1), K: array(k, keys, 1), V: array(v, keys, 1), Add: array(none, 1, keys), Scale: 1})
	require.InDelta(t, want.Data[0], get[float64](r, y, nil)[0], 1e-13)
}

// TestEmbeddingGradOfFewRows has indices of one row that several goroutines process.
func TestEmbeddingGradOfFewRows(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	const places, n = 4096, 64
	index, ones := make([]int32, places), make([]float32, places*n)
	for i := range index {
		index[i] = int32(min(i/1000, 1))
	}
	for i := range ones {
		ones[i] = 1
	}
	d, err := r.EmbeddingGrad(r.ctx, put(r, ones, places, n), put(r, index), 2, EmbeddingConfig{})
	for i, got := range get[float32](r, d, err) {
		require.Equal(t, []float32{1000, places - 1000}[i/n], got)
	}
}
