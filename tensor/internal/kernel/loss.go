package kernel

import "math"

// Loss is a function of an element x and its target t.
type Loss uint8

// The losses, in the order of loss.cu.
const (
	MSE   Loss = iota // (x - t)²
	L1                // |x - t|
	Huber             // (x - t)²/2 up to a distance of delta, and linear beyond
	BCE               // the binary cross entropy of a logit and a probability
	KL                // t log(t) - t x, with 0 as the first term if t is 0
	KLLog             // KL for a target that is the logarithm of t
)

// Pairs holds the operands of a loss. Weight, and Pos, the weight of positive answers, are for BCE.
// Nil means none, which differs from 1 for infinite targets.
type Pairs[T Float] struct{ X, T, Weight, Pos []T }

// lossOf returns the loss of pair i.
func lossOf[T Float](l Loss, p Pairs[T], i int, delta float64) float64 {
	x, t := float64(p.X[i]), float64(p.T[i])
	d := x - t
	switch l {
	case MSE:
		return d * d
	case L1:
		return math.Abs(d)
	case Huber:
		if d = math.Abs(d); d >= delta {
			return delta * (d - 0.5*delta)
		}
		return 0.5 * d * d
	case BCE:
		loss := softplus(-x)
		if len(p.Pos) > 0 {
			loss *= 1 + (float64(p.Pos[i])-1)*t
		}
		return orElse(p.Weight, i, 1) * ((1-t)*x + loss)
	case KL:
		if t == 0 {
			return -t * x
		}
		return t*log(t) - t*x
	case KLLog:
		return exp(t) * (t - x)
	}
	panic("kernel: no loss has this number")
}

// softplus returns log(1 + exp(x)), without overflow.
func softplus(x float64) float64 { return max(x, 0) + math.Log1p(math.Exp(-math.Abs(x))) }

// slopeOf returns the derivative of the loss of pair i with respect to x or, with target, to t.
func slopeOf[T Float](l Loss, p Pairs[T], i int, delta float64, target bool) float64 {
	x, t := float64(p.X[i]), float64(p.T[i])
	switch l {
	case BCE:
		return orElse(p.Weight, i, 1) * p.slopeOfBCE(i, target)
	case KL, KLLog:
		return slopeOfKL(l, x, t, target)
	}
	d := x - t
	if target {
		d = t - x
	}
	switch {
	case l == MSE:
		return 2 * d
	case l == Huber && d > -delta && d < delta || d != d || d == 0:
		return d
	case l == L1:
		delta = 1
	}
	return math.Copysign(delta, d)
}

// slopeOfBCE returns the derivative for pair i before it is weighted.
func (p Pairs[T]) slopeOfBCE(i int, target bool) float64 {
	x, t := float64(p.X[i]), float64(p.T[i])
	switch pos := orElse(p.Pos, i, 1); {
	case len(p.Pos) == 0 && target:
		return -x
	case len(p.Pos) == 0:
		return sigmoid(x) - t
	case target:
		return pos*softplus(-x) - softplus(x)
	default:
		return (pos*t+1-t)*sigmoid(x) - pos*t
	}
}

// slopeOfKL returns the derivative of KL and KLLog. For KL and a target of 0, the derivative with
// respect to the target is NaN, as in PyTorch.
func slopeOfKL(l Loss, x, t float64, target bool) float64 {
	switch {
	case l == KL && target:
		return log(t) + t/t - x
	case l == KL:
		return -t
	case target:
		return exp(t)*(t-x) + exp(t)
	}
	return -exp(t)
}

// EachLoss sets dst to the losses.
func EachLoss[T Float](l Loss, dst []T, p Pairs[T], delta float64) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = T(lossOf(l, p, i, delta))
		}
	})
}

// TotalLoss sets dst[0] to the sum of the losses over divisor.
func TotalLoss[T Float](l Loss, dst []T, p Pairs[T], delta, divisor float64) {
	n := len(p.X)
	sum := sumOfParts(n, max(1, grainMath*parts/max(1, n)), func(lo, hi int) float64 {
		return sumOf(lo, hi, func(i int) float64 { return lossOf(l, p, i, delta) })
	})
	dst[0] = T(sum / divisor)
}

// LossGrad sets dst to the gradient of x or, with target, of t. It is dloss, which has an element
// for each pair or one for all, times the derivative over divisor.
func LossGrad[T Float](l Loss, dst, dloss []T, p Pairs[T], delta, divisor float64, target bool) {
	each := 1
	if len(dloss) == 1 {
		each = 0
	}
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			dst[i] = T(float64(dloss[i*each]) / divisor * slopeOf(l, p, i, delta, target))
		}
	})
}
