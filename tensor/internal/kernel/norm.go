package kernel

import "math"

// Norm is the p of a p-norm, as in torch.linalg.vector_norm: an infinite p selects the greatest or
// the smallest magnitude, and 0 counts the elements that are not 0.
type Norm float64

// term returns the term of a number with magnitude a.
func (p Norm) term(a float64) float64 {
	switch {
	case p == 2:
		return a * a
	case p == 1 || math.IsInf(float64(p), 0):
		return a
	case p == 0 && a == 0:
		return 0
	case p == 0:
		return 1
	}
	return math.Pow(a, float64(p))
}

// none returns the sum of no terms.
func (p Norm) none() float64 {
	if math.IsInf(float64(p), -1) {
		return math.Inf(1)
	}
	return 0
}

// join returns the sum of two sums, which for an infinite p is the greater or the smaller one. NaN
// stays NaN.
func (p Norm) join(a, b float64) float64 {
	switch {
	case math.IsInf(float64(p), 1):
		return max(a, b)
	case math.IsInf(float64(p), -1):
		return min(a, b)
	}
	return a + b
}

// root returns the norm for a complete sum.
func (p Norm) root(sum float64) float64 {
	switch {
	case p == 2:
		return math.Sqrt(sum)
	case p == 0 || p == 1 || math.IsInf(float64(p), 0):
		return sum
	}
	return math.Pow(sum, 1/float64(p))
}

// NormOf returns the norm of x. The order of summation depends only on the length.
func NormOf[T Float](p Norm, x []T) float64 {
	parts := make([]float64, (len(x)+leaf-1)/leaf)
	split(len(parts), max(1, grainCheap/leaf), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			sum := p.none()
			for _, v := range x[i*leaf : min((i+1)*leaf, len(x))] {
				sum = p.join(sum, p.term(math.Abs(float64(v))))
			}
			parts[i] = sum
		}
	})
	return p.root(p.all(parts))
}

// NormOfNorms returns the norm of several norms.
func NormOfNorms(p Norm, norms []float64) float64 {
	sum := p.none()
	for _, v := range norms {
		sum = p.join(sum, p.term(v))
	}
	return p.root(sum)
}

// all joins the parts in pairs.
func (p Norm) all(parts []float64) float64 {
	switch len(parts) {
	case 0:
		return p.none()
	case 1:
		return parts[0]
	}
	mid := len(parts) / 2
	return p.join(p.all(parts[:mid]), p.all(parts[mid:]))
}

// Clip multiplies x by most/(norm+1e-6) if that is less than 1, or NaN.
func Clip[T Float](x []T, norm, most float64) {
	scale := most / (norm + 1e-6)
	if scale >= 1 {
		return
	}
	split(len(x), grainCheap, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x[i] *= T(scale)
		}
	})
}

// Bound limits the elements of x to between -most and most, except NaN.
func Bound[T Float](x []T, most float64) {
	m := T(most)
	split(len(x), grainCheap, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if x[i] > m {
				x[i] = m
			} else if x[i] < -m {
				x[i] = -m
			}
		}
	})
}
