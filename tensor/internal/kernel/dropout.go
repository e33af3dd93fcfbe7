package kernel

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// Philox is Philox4x32 with ten rounds (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3): a function of
// a counter and a key whose results are random numbers. Nothing is carried from one to the next, so that any processor can
// compute any of them.
func Philox(counter [4]uint32, key [2]uint32) [4]uint32 {
	a, b, c, d := simd.Philox(counter[0], counter[1], counter[2], counter[3], key[0], key[1])
	return [4]uint32{a, b, c, d}
}

// Random is where the random numbers of an operation come from: number i is word i%4 of Philox with the counter (i/4,
// Stream) and the key Seed, their low words first.
type Random struct{ Seed, Stream uint64 }

// randomBlock is how many random numbers are made at a time.
const randomBlock = 1024

// Dropout sets dst to x times scale where the random number of the element is at least below, and times 0 elsewhere. dst may
// be x.
func Dropout[T Float](dst, x []T, r Random, below uint64, scale float64) {
	split((len(x)+randomBlock-1)/randomBlock, grainVectorMath/randomBlock, func(lo, hi int) {
		var words [randomBlock]uint32
		factors := [2]T{T(scale), 0}
		for b := lo; b < hi; b++ {
			simd.Words(words[:], uint64(b)*(randomBlock/4), r.Stream, r.Seed)
			from := b * randomBlock
			to := min(from+randomBlock, len(x))
			out, in := dst[from:to], x[from:to]
			for i, v := range in {
				out[i] = v * factors[(uint64(words[i])-below)>>63] // a branch would be guessed wrong half of the time
			}
		}
	})
}
