package transfer_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

func TestRoundSize(t *testing.T) {
	for n, want := range map[int64]int64{
		-1: 0, 0: 0, 1: 64, 64: 64, 65: 128, 512: 512, 513: 576, 1024: 1024, 1025: 1152, 1152: 1152, 1153: 1280,
		1 << 20: 1 << 20, 1<<20 + 1: 9 << 17, 1 << 46: 1 << 46, 1<<46 + 1: 0, math.MaxInt64: 0,
	} {
		require.Equal(t, want, transfer.RoundSize(n), n)
	}
}

// Every size is rounded up to a class, by at most an eighth above 512 bytes; classes are fixed points, and
// larger requests never get less.
func FuzzRoundSize(f *testing.F) {
	for _, n := range []int64{1, 512, 513, 4095, 1<<46 - 1} {
		f.Add(n)
	}
	f.Fuzz(func(t *testing.T, n int64) {
		if n <= 0 || n >= 1<<46 {
			return
		}
		size := transfer.RoundSize(n)
		require.GreaterOrEqual(t, size, n)
		require.Zero(t, size%64)
		require.Equal(t, size, transfer.RoundSize(size))
		require.LessOrEqual(t, size, transfer.RoundSize(n+1))
		if n > 512 {
			require.LessOrEqual(t, (size-n)*8, n)
		} else {
			require.Less(t, size-n, int64(64))
		}
	})
}

func TestWasteOfAMix(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var asked, got float64
	for range 100_000 {
		n := int64(4096 * math.Pow(64<<20/4096, rng.Float64()))
		asked += float64(n)
		got += float64(transfer.RoundSize(n))
	}
	waste := got/asked - 1
	t.Logf("waste over a log-uniform mix of 4 KiB to 64 MiB: %.1f %%", 100*waste)
	require.Less(t, waste, 0.125)
}
