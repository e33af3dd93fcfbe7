package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Pow sets dst to a to the power of b, broadcast according to p. dst may be a or b.
func Pow[T Float](dst, a, b []T, p *plan.Broadcast) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x, y := p.At(i)
			dst[i] = T(pow(float64(a[x]), float64(b[y])))
		}
	})
}

// PowGrad sets dst, which may be dy, to the gradient of a or, with exponent, of b. dy is the
// gradient of a to the power of b. As in PyTorch, the gradient of a is 0 where b is 0, and the
// gradient of b is 0 where a is 0 and b is not negative. p is the meeting of a and b.
func PowGrad[T Float](exponent bool, dst, dy, a, b []T, p *plan.Meeting) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			d, x, y := float64(dy[i]), float64(a[p.At(0, i)]), float64(b[p.At(1, i)])
			switch {
			case exponent && x == 0 && y >= 0:
				d *= 0
			case exponent:
				d *= pow(x, y) * log(x)
			case y == 0:
				d = 0
			default:
				d *= y * pow(x, y-1)
			}
			dst[i] = T(d)
		}
	})
}
