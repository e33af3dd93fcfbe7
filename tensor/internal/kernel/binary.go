package kernel

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

// Zip sets dst = op(a, b), where p says which elements of a and b meet.
func Zip[T Float](op Binary, dst, a, b []T, p *Broadcast) {
	run := zipLoop[T](op)
	dims, as, bs := p.Strides()
	inner := len(dims) - 1
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
