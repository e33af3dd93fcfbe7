package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// Dropout sets dst, which may be x, to x times d.Scale where the random word of the element is at
// least d.Below, and times 0 elsewhere.
func Dropout[T Float](dst, x []T, d plan.Drop) {
	factors := [2]T{T(d.Scale), 0}
	eachBlock(len(x), 1, d.Random, func(w *randomWords, from, to int) {
		out, in := dst[from:to], x[from:to]
		for i, v := range in {
			// A branch would be mispredicted half of the time.
			out[i] = v * factors[(uint64(w[i])-d.Below)>>63]
		}
	})
}
