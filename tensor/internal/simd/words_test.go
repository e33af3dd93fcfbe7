//go:build unix

package simd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWords(t *testing.T) {
	eachLevel(t, func(t *testing.T) {
		r, f := rand.New(rand.NewPCG(8, 9)), newFence(t, 8192)
		for n := 32; n <= 512; n += 32 {
			counter, stream, seed := r.Uint64(), r.Uint64(), r.Uint64()
			if n%64 == 0 {
				counter = 1<<32 - 5 // it is carried over
			}
			for _, end := range []bool{false, true} {
				dst := slice[uint32](f, n, end)
				Words(dst, counter, stream, seed)
				for i := 0; i < n; i += 4 {
					c := counter + uint64(i/4)
					a, b, x, y := Philox(uint32(c), uint32(c>>32), uint32(stream), uint32(stream>>32), uint32(seed), uint32(seed>>32))
					require.Equal(t, []uint32{a, b, x, y}, dst[i:i+4], "counter %d of %d", i/4, n/4)
				}
				require.True(t, intact(f, dst))
			}
		}
	})
}
