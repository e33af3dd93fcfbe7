package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// randomBlock is how many random numbers are made at a time.
const randomBlock = 1024

// Dropout sets dst, which may be x, to x times d.Scale where the random number of the element is at
// least d.Below, and times 0 elsewhere. Number i is word i%4 of Philox with the counter (i/4,
// d.Stream) and the key d.Seed, their low words first.
func Dropout[T Float](dst, x []T, d plan.Drop) {
	split((len(x)+randomBlock-1)/randomBlock, grainVectorMath/randomBlock, func(lo, hi int) {
		var words [randomBlock]uint32
		factors := [2]T{T(d.Scale), 0}
		for b := lo; b < hi; b++ {
			simd.Words(words[:], uint64(b)*(randomBlock/4), d.Stream, d.Seed)
			from := b * randomBlock
			to := min(from+randomBlock, len(x))
			out, in := dst[from:to], x[from:to]
			for i, v := range in {
				out[i] = v * factors[(uint64(words[i])-d.Below)>>63] // a branch would be guessed wrong half of the time
			}
		}
	})
}
