package reference

import "math"

// Broadcast returns the shape of an elementwise operation on arrays of shapes a and b, as in NumPy.
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

// Binary applies f to the elements of a and b, broadcast to the same shape.
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

// ReLU returns 0 for a negative x, otherwise x, so that NaN stays NaN.
func ReLU(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

// The gradients of elementwise functions take dy, the gradient of the result, and y, the result, or
// x, the argument.

// ReLUGrad returns dy, or 0 if y is 0 or less.
func ReLUGrad(dy, y float64) float64 {
	if y <= 0 {
		return 0
	}
	return dy
}

// TanhGrad returns dy(1-y²), with 1-y² rounded once.
func TanhGrad(dy, y float64) float64 { return dy * math.FMA(-y, y, 1) }

// SigmoidGrad returns dy·y(1-y).
func SigmoidGrad(dy, y float64) float64 { return dy * (y * (1 - y)) }

// SqrtGrad returns dy/2y.
func SqrtGrad(dy, y float64) float64 { return dy / (y + y) }

// SquareGrad returns dy·2x.
func SquareGrad(dy, x float64) float64 { return dy * (x + x) }
