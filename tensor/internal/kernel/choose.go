package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// Choose sets dst to a where cond is not 0, and to b elsewhere. A nil a or b stands for zeros. p is
// the meeting of cond, a and b.
func Choose[C uint8 | int32 | int64, E uint8 | uint16 | uint32 | uint64](dst []E, cond []C, a, b []E, p *plan.Meeting) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			from, k := b, 2
			if cond[p.At(0, i)] != 0 {
				from, k = a, 1
			}
			var v E
			if from != nil {
				v = from[p.At(k, i)]
			}
			dst[i] = v
		}
	})
}

// ExtremeGrad sets dst to the gradient of a. dy is the gradient of the maximum of a and b if
// greatest is set, otherwise of their minimum. The gradient is dy where a was taken, half of dy
// where a and b are equal, and dy where either is NaN. p is the meeting of a and b.
func ExtremeGrad[T Float](greatest bool, dst, dy, a, b []T, p *plan.Meeting) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x, y, v := a[p.At(0, i)], b[p.At(1, i)], dy[i]
			switch {
			case x == y:
				v /= 2
			case greatest && x < y, !greatest && x > y:
				v = 0
			}
			dst[i] = v
		}
	})
}
