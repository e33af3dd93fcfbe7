package reference

import "math"

// Broadcast is the shape of an elementwise operation on arrays of two shapes that NumPy broadcasts.
func Broadcast(a, b []int) []int {
	out := make([]int, max(len(a), len(b)))
	for d := range out {
		x, y := 1, 1
		if i := d - len(out) + len(a); i >= 0 {
			x = a[i]
		}
		if i := d - len(out) + len(b); i >= 0 {
			y = b[i]
		}
		if out[d] = x; x == 1 {
			out[d] = y
		}
	}
	return out
}

// Binary applies f to the elements that meet.
func Binary(a, b Array, f func(a, b float64) float64) Result {
	r := newResult(Broadcast(a.Shape, b.Shape))
	each(r.Shape, func(i int, index []int) {
		r.Data[i] = f(a.Data[place(a.Shape, index)], b.Data[place(b.Shape, index)])
		r.Size[i] = math.Abs(r.Data[i])
	})
	return r
}

// Unary applies f to every element.
func Unary(x Array, f func(float64) float64) Result {
	r := newResult(x.Shape)
	for i, v := range x.Data {
		r.Data[i] = f(v)
		r.Size[i] = math.Abs(r.Data[i])
	}
	return r
}

// ReLU is x if it is not negative: NaN stays NaN.
func ReLU(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

// Gradients of elementwise functions: dy is that of the result, y the result, x the argument.

// ReLUGrad is dy where y is not 0 or less.
func ReLUGrad(dy, y float64) float64 {
	if y <= 0 {
		return 0
	}
	return dy
}

// TanhGrad is dy(1-y²), with 1-y² rounded once.
func TanhGrad(dy, y float64) float64 { return dy * math.FMA(-y, y, 1) }

// SigmoidGrad is dy·y(1-y).
func SigmoidGrad(dy, y float64) float64 { return dy * (y * (1 - y)) }

// SqrtGrad is dy/2y.
func SqrtGrad(dy, y float64) float64 { return dy / (y + y) }

// SquareGrad is dy·2x.
func SquareGrad(dy, x float64) float64 { return dy * (x + x) }
