package kernel

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// Binary is an elementwise function of two arguments.
type Binary uint8

// The elementwise functions of two arguments. The gradients take dy, the gradient of the result y, and
// either y or the argument x, whichever the forward pass keeps.
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
	Maximum     // NaN if one is
	Minimum
)

// Name is the function's name in launches and errors.
func (b Binary) Name() string {
	return [...]string{"add", "sub", "mul", "div", "relu grad", "tanh grad", "sigmoid grad", "sqrt grad", "square grad", "broadcast",
		"maximum", "minimum"}[b]
}

// vectorBinary are those that package simd has.
var vectorBinary = [...]simd.Binary{Add: simd.Add, Sub: simd.Sub, Mul: simd.Mul, Div: simd.Div, ReLUGrad: simd.ReLUGrad, TanhGrad: simd.TanhGrad,
	SigmoidGrad: simd.SigmoidGrad, SqrtGrad: simd.SqrtGrad, SquareGrad: simd.SquareGrad, First: simd.NoBinary, Maximum: simd.Maximum,
	Minimum: simd.Minimum}

// Zip sets dst = op(a, b), where p says which elements of a and b meet.
func Zip[T Float](op Binary, dst, a, b []T, p *Broadcast) {
	dims, as, bs := p.Strides()
	inner := len(dims) - 1
	if f := simd.BinaryOf[T](vectorBinary[op]); f != nil && (inner < 0 || as[inner] <= 1 && bs[inner] <= 1) {
		zipVector(f, dst, a, b, p)
		return
	}
	run := zipLoop[T](op)
	if inner < 0 {
		if len(dst) > 0 {
			run(dst[:1], a, b, 0, 0)
		}
		return
	}
	n, sa, sb := dims[inner], as[inner], bs[inner]
	if inner == 0 {
		split(n, grainCheap, func(lo, hi int) { run(dst[lo:hi], a[lo*sa:], b[lo*sb:], sa, sb) })
		return
	}
	rows := len(dst) / max(1, n)
	split(rows, max(1, grainCheap/max(1, n)), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			oa, ob := p.offsets(row)
			run(dst[row*n:(row+1)*n], a[oa:], b[ob:], sa, sb)
		}
	})
}

// zipVector is Zip where the elements of rows are neighbours, or one for all.
func zipVector[T Float](f simd.BinaryFunc[T], dst, a, b []T, p *Broadcast) {
	dims, as, bs := p.Strides()
	inner := len(dims) - 1
	switch {
	case len(dst) == 0:
	case inner < 0:
		f(&dst[0], &a[0], &b[0], 1, 0, 0)
	case inner == 0 && len(dst) < 2*grainVector:
		zipPart(f, dst, a, b, as[0], bs[0])
	case inner == 0:
		sa, sb := as[0], bs[0]
		split(len(dst), grainVector, func(lo, hi int) { zipPart(f, dst[lo:hi], a[lo*sa:], b[lo*sb:], sa, sb) })
	case len(dst) < 2*grainVector:
		zipRows(f, dst, a, b, p, 0, len(dst)/dims[inner])
	default:
		split(len(dst)/dims[inner], max(1, grainVector/dims[inner]), func(lo, hi int) { zipRows(f, dst, a, b, p, lo, hi) })
	}
}

// zipRows is for rows [lo, hi).
func zipRows[T Float](f simd.BinaryFunc[T], dst, a, b []T, p *Broadcast, lo, hi int) {
	inner := len(p.Dims) - 1
	n, sa, sb := p.Dims[inner], p.Dst[inner], p.Src[inner]
	for row := lo; row < hi; row++ {
		oa, ob := p.offsets(row)
		zipPart(f, dst[row*n:(row+1)*n], a[oa:], b[ob:], sa, sb)
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
				dst[i] = dy[i*sa] * ((1 - v) * (1 + v)) // 1-v*v loses all digits near 1
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
	default:
		return func(dst, dy, x []T, sa, sb int) {
			for i := range dst {
				dst[i] = dy[i*sa] * (2 * x[i*sb])
			}
		}
	}
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
		v := dy[i*sa] // before dst[i] is written: they may be the same memory
		if y[i*sb] <= 0 {
			v = 0
		}
		dst[i] = v
	}
}
