package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/internal/bfloat16"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// Logit is the constraint of a row's elements. Rows of bfloat16 are converted to float32 one row at
// a time on each processor, rather than as a whole, because the logits of a large vocabulary are
// the largest tensor of a step.
type Logit interface{ Float | bfloat16.Number }

// row returns the elements of row i. It copies them to buf unless they are adjacent and of type T.
func row[T Float, E Logit](x []E, i int, r plan.Rows, buf []T) []T {
	at := r.Start(i)
	switch x := any(x).(type) {
	case []T:
		if r.Inner == 1 {
			return x[at:][:r.Cols]
		}
		for j := range buf {
			buf[j] = x[at+j*r.Inner]
		}
	case []bfloat16.Number:
		for j := range buf {
			buf[j] = T(x[at+j*r.Inner].Float32())
		}
	}
	return buf
}

// rowOr returns where the elements of a row are written: their place in dst if they are adjacent
// and of type T, otherwise buf, which setRow copies.
func rowOr[T Float, E Logit](dst []E, i int, r plan.Rows, buf []T) []T {
	if dst, ok := any(dst).([]T); ok && r.Inner == 1 {
		return dst[r.Start(i):][:r.Cols]
	}
	return buf
}

// setRow copies the elements to dst, unless they are already there.
func setRow[T Float, E Logit](dst []E, i int, r plan.Rows, row []T) {
	at := r.Start(i)
	switch dst := any(dst).(type) {
	case []T:
		if r.Inner == 1 {
			return
		}
		for j, v := range row {
			dst[at+j*r.Inner] = v
		}
	case []bfloat16.Number:
		for j, v := range row {
			dst[at+j*r.Inner] = bfloat16.Round(float32(v))
		}
	}
}

// buffer returns a buffer for row, or nil if row does not need one.
func buffer[T Float, E Logit](x []E, r plan.Rows) []T {
	if _, there := any(x).([]T); there && r.Inner == 1 {
		return nil
	}
	return make([]T, r.Cols)
}

// eachRow calls f with the parts of n rows.
func eachRow(n int, r plan.Rows, f func(lo, hi int)) {
	if r.Cols > 0 && r.Inner > 0 {
		split(n/r.Cols, max(1, mathGrain()/r.Cols), f)
	}
}

// exponentials is a buffer for the exponentials of a row of limited length, so that each is
// computed only once.
type exponentials [2048]float64

// Softmax sets every row of dst to the softmax of that row of x or, with log, to its logarithm. It
// computes in float64 and does not overflow.
func Softmax[T Float](dst, x []T, r plan.Rows, log bool) {
	eachRow(len(dst), r, func(lo, hi int) {
		var exps exponentials
		buf := buffer[T](x, r)
		for i := lo; i < hi; i++ {
			in := row(x, i, r, buf)
			out := rowOr(dst, i, r, in)
			if log {
				top, sum := logSum(in)
				less := math.Log(sum)
				chunks(len(in), func(lo, hi int) { simd.Less(out[lo:hi], in[lo:hi], top, less) })
			} else {
				top := float64(greatest(in))
				kept, sum := expsOf(&exps, in, top, false)
				scaleExps(out, in, kept, top, 1/sum)
			}
			setRow(dst, i, r, out)
		}
	})
}

// expsOf returns exp(v - top) for each element of a row and their sum. For rows that are too long
// it returns only the sum. With precise the exponentials have all digits of float64, for
// differences in which most of them cancel.
func expsOf[T Float](room *exponentials, row []T, top float64, precise bool) (exps []float64, sum float64) {
	if len(row) > len(room) {
		return nil, sumExp(row, top)
	}
	exps = room[:len(row)]
	if precise {
		return exps, simd.ExpToPrecise(exps, row, top)
	}
	return exps, simd.ExpTo(exps, row, top)
}

// scaleExps sets out to exp(v - top) c. It uses exps, unless exps is nil.
func scaleExps[T Float](out, row []T, exps []float64, top, c float64) {
	if exps != nil {
		simd.ScaleTo(out, exps, c)
		return
	}
	chunks(len(row), func(lo, hi int) { simd.ExpScale(out[lo:hi], row[lo:hi], top, c) })
}

// SoftmaxGrad sets dst to the gradient of the argument by row: y * (dy - sum(dy*y)) for the softmax
// y, and dy - exp(y) * sum(dy) for its logarithm.
func SoftmaxGrad[T Float](dst, dy, y []T, r plan.Rows, log bool) {
	eachRow(len(dst), r, func(lo, hi int) {
		one, two := buffer[T](dy, r), buffer[T](y, r)
		for i := lo; i < hi; i++ {
			g, v := row(dy, i, r, one), row(y, i, r, two)
			out := rowOr(dst, i, r, v)
			if log {
				sum := total(g)
				chunks(len(v), func(lo, hi int) { simd.LogSoftmaxGrad(out[lo:hi], g[lo:hi], v[lo:hi], sum) })
			} else {
				d := dot(g, v)
				chunks(len(v), func(lo, hi int) { simd.SoftmaxGrad(out[lo:hi], g[lo:hi], v[lo:hi], d) })
			}
			setRow(dst, i, r, out)
		}
	})
}

// ArgMax sets dst[i] to the index of the greatest element of row i of x, or of the smallest if sign
// is -1. Of several it takes the first. NaN counts as the greatest or smallest, as in PyTorch.
func ArgMax[T Float](dst []int32, x []T, r plan.Rows, sign T) {
	buf := buffer[T](x, r)
	for i := range dst {
		in := row(x, i, r, buf)
		best := 0
		for j, v := range in {
			if sign*v > sign*in[best] || (v != v && in[best] == in[best]) {
				best = j
			}
		}
		dst[i] = int32(best)
	}
}

// logSum returns the greatest element of the row and the sum of exp(v - greatest).
func logSum[T Float](row []T) (top, sum float64) {
	top = float64(greatest(row))
	return top, sumExp(row, top)
}
