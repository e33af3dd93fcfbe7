package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Binary is an elementwise function of two arguments.
type Binary uint8

// The elementwise functions of two arguments. The gradients take dy, the gradient of the result y,
// and either y or the argument x, depending on which of them the forward pass keeps.
const (
	Add Binary = iota
	Sub
	Mul
	Div
	ReLUGrad    // dy if y > 0, else 0
	TanhGrad    // dy * (1 - y)(1 + y)
	SigmoidGrad // dy * y * (1 - y)
	SqrtGrad    // dy / (2*y)
	SquareGrad  // dy * 2*x
	First       // a
	Maximum     // NaN if either is NaN
	Minimum
)

// vectorBinary holds the functions of package simd; NoBinary if it has none.
var vectorBinary = [...]simd.Binary{Add: simd.Add, Sub: simd.Sub, Mul: simd.Mul, Div: simd.Div, ReLUGrad: simd.ReLUGrad, TanhGrad: simd.TanhGrad,
	SigmoidGrad: simd.SigmoidGrad, SqrtGrad: simd.SqrtGrad, SquareGrad: simd.SquareGrad, First: simd.NoBinary, Maximum: simd.Maximum,
	Minimum: simd.Minimum}

// Zip sets dst = op(a, b). p describes how the elements of a and b are broadcast.
func Zip[T Float](op Binary, dst, a, b []T, p *plan.Broadcast) {
	z, grain := zipperOf[T](op)
	n, sa, sb := p.Row()
	switch {
	case len(dst) == 0:
	case len(dst) == n && n < 2*grain:
		z.row(dst, a, b, sa, sb)
	case len(dst) < 2*grain:
		z.rows(dst, a, b, p, 0, len(dst)/n)
	case len(dst) == n:
		split(n, grain, func(lo, hi int) { z.row(dst[lo:hi], a[lo*sa:], b[lo*sb:], sa, sb) })
	default:
		split(len(dst)/n, max(1, grain/n), func(lo, hi int) { z.rows(dst, a, b, p, lo, hi) })
	}
}

// ZipAlike is Zip for arrays of the same length.
func ZipAlike[T Float](op Binary, dst, a, b []T) {
	z, grain := zipperOf[T](op)
	if len(dst) < 2*grain {
		z.row(dst, a, b, 1, 1)
		return
	}
	split(len(dst), grain, func(lo, hi int) { z.row(dst[lo:hi], a[lo:], b[lo:], 1, 1) })
}

// zipper computes rows. The strides sa and sb of a and b are 1, or 0 for a single element instead
// of many.
type zipper[T Float] struct {
	vector simd.BinaryFunc[T] // nil: loop
	loop   func(dst, a, b []T, sa, sb int)
}

func zipperOf[T Float](op Binary) (z zipper[T], grain int) {
	if z.vector = simd.BinaryOf[T](vectorBinary[op]); z.vector != nil {
		return z, grainVector
	}
	z.loop = zipLoop[T](op)
	return z, grainCheap
}

// rows computes rows [lo, hi).
func (z zipper[T]) rows(dst, a, b []T, p *plan.Broadcast, lo, hi int) {
	n, sa, sb := p.Row()
	for row := lo; row < hi; row++ {
		oa, ob := p.Offsets(row)
		z.row(dst[row*n:(row+1)*n], a[oa:], b[ob:], sa, sb)
	}
}

func (z zipper[T]) row(dst, a, b []T, sa, sb int) {
	if z.vector != nil {
		zipPart(z.vector, dst, a, b, sa, sb)
	} else {
		z.loop(dst, a, b, sa, sb)
	}
}

func zipLoop[T Float](op Binary) func(dst, a, b []T, sa, sb int) {
	switch op {
	case Add:
		return addLoop[T]
	case Sub:
		return func(dst, a, b []T, sa, sb int) {
			for i := range dst {
				dst[i] = a[i*sa] - b[i*sb]
			}
		}
	case Mul:
		return mulLoop[T]
	case Div:
		return func(dst, a, b []T, sa, sb int) {
			for i := range dst {
				dst[i] = a[i*sa] / b[i*sb]
			}
		}
	case ReLUGrad:
		return reluGradLoop[T]
	case TanhGrad:
		return func(dst, dy, y []T, sa, sb int) {
			for i := range dst {
				v := y[i*sb]
				// 1-v*v would lose all digits near 1.
				dst[i] = dy[i*sa] * ((1 - v) * (1 + v))
			}
		}
	case SigmoidGrad:
		return func(dst, dy, y []T, sa, sb int) {
			for i := range dst {
				v := y[i*sb]
				dst[i] = dy[i*sa] * v * (1 - v)
			}
		}
	case SqrtGrad:
		return func(dst, dy, y []T, sa, sb int) {
			for i := range dst {
				dst[i] = dy[i*sa] / (2 * y[i*sb])
			}
		}
	case First:
		return func(dst, a, _ []T, sa, _ int) {
			for i := range dst {
				dst[i] = a[i*sa]
			}
		}
	case Maximum:
		return func(dst, a, b []T, sa, sb int) {
			for i := range dst {
				x, y := a[i*sa], b[i*sb]
				if x > y || x != x {
					y = x
				}
				dst[i] = y
			}
		}
	case Minimum:
		return func(dst, a, b []T, sa, sb int) {
			for i := range dst {
				x, y := a[i*sa], b[i*sb]
				if x < y || x != x {
					y = x
				}
				dst[i] = y
			}
		}
	case SquareGrad:
		return func(dst, dy, x []T, sa, sb int) {
			for i := range dst {
				dst[i] = dy[i*sa] * (2 * x[i*sb])
			}
		}
	}
	return nil // the caller panics for any other operation
}

func addLoop[T Float](dst, a, b []T, sa, sb int) {
	if sa == 1 && sb == 1 {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := range dst {
			dst[i] = a[i] + b[i]
		}
		return
	}
	for i := range dst {
		dst[i] = a[i*sa] + b[i*sb]
	}
}

func mulLoop[T Float](dst, a, b []T, sa, sb int) {
	if sa == 1 && sb == 1 {
		a, b = a[:len(dst)], b[:len(dst)]
		for i := range dst {
			dst[i] = a[i] * b[i]
		}
		return
	}
	for i := range dst {
		dst[i] = a[i*sa] * b[i*sb]
	}
}

func reluGradLoop[T Float](dst, dy, y []T, sa, sb int) {
	if sa == 1 && sb == 1 {
		dy, y = dy[:len(dst)], y[:len(dst)]
		for i := range dst {
			v := dy[i]
			if y[i] <= 0 {
				v = 0
			}
			dst[i] = v
		}
		return
	}
	for i := range dst {
		// dy is read before dst[i] is written, because they may be the same memory.
		v := dy[i*sa]
		if y[i*sb] <= 0 {
			v = 0
		}
		dst[i] = v
	}
}
