package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// TestRandomWordsFarOut checks the words of blocks around number 2^32 and up to 2^62, which are too
// many to allocate.
func TestRandomWordsFarOut(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	blocks := []uint64{0, 1, 1<<22 - 1, 1 << 22, 1<<22 + 1, 1<<24 - 1, 1 << 24, 1<<32 + 5, 1<<52 - 1}
	for range 20 {
		blocks = append(blocks, random.Uint64N(1<<52))
	}
	for _, b := range blocks {
		r := plan.Random{Seed: random.Uint64(), Stream: random.Uint64()}
		want := reference.Random{Seed: r.Seed, Stream: r.Stream}
		var w randomWords
		w.make(b, r)
		for j, v := range w {
			require.Equal(t, want.Word(b*randomBlock+uint64(j)), v, "word %d of block %d", j, b)
		}
		for j := range randomBlock / 2 {
			require.Equal(t, want.Number(b*randomBlock/2+uint64(j)), w.number(j))
		}
	}
}

// TestKey: keys order like the numbers, and equal numbers have equal keys.
func TestKey(t *testing.T) {
	inf := math.Inf(1)
	ordered := []float64{-inf, -math.MaxFloat32, -2, -1.5, -math.SmallestNonzeroFloat32, 0, math.SmallestNonzeroFloat32, 1, 1.25, math.MaxFloat32, inf}
	for i, v := range ordered[1:] {
		require.Less(t, key(ordered[i]), key(v), v)
		require.Less(t, key(float32(ordered[i])), key(float32(v)), v)
	}
	require.Equal(t, key(0.0), key(math.Copysign(0, -1)))
	require.Equal(t, key(float32(0)), key(float32(math.Copysign(0, -1))))
	require.Less(t, key(float32(inf)), uint64(1)<<32)
}
