package simd

import "math"

func plainExpToPrecise[T Float](dst []float64, x []T, top float64) float64 {
	return plainExpTo(dst, x, top)
}

func plainExpTo[T Float](dst []float64, x []T, top float64) float64 {
	if len(dst) > leaf {
		h := half(len(dst))
		return plainExpTo(dst[:h], x[:h], top) + plainExpTo(dst[h:], x[h:], top)
	}
	sum := 0.0
	for i := range dst {
		e := math.Exp(float64(x[i]) - top)
		dst[i] = e
		sum += e
	}
	return sum
}

func plainScaleTo[T Float](dst []T, x []float64, c float64) {
	for i := range dst {
		dst[i] = T(x[i] * c)
	}
}

func plainExpScale[T Float](dst, x []T, top, c float64) {
	for i := range dst {
		dst[i] = T(math.Exp(float64(x[i])-top) * c)
	}
}

func plainLess[T Float](dst, x []T, top, c float64) {
	for i := range dst {
		dst[i] = T(float64(x[i]) - top - c)
	}
}

func plainSoftmaxGrad[T Float](dst, dy, y []T, dot float64) {
	for i := range dst {
		dst[i] = T(float64(y[i]) * (float64(dy[i]) - dot))
	}
}

func plainLogSoftmaxGrad[T Float](dst, dy, y []T, sum float64) {
	for i := range dst {
		dst[i] = T(float64(dy[i]) - math.Exp(float64(y[i]))*sum)
	}
}

func plainNormalize[T Float](dst, x, w, b []T, mean, rstd float64) {
	sw, sb := step(w), step(b)
	for i := range dst {
		dst[i] = T((float64(x[i])-mean)*(rstd*float64(w[i*sw])) + float64(b[i*sb]))
	}
}

func plainNormalizeGrad[T Float](dst, dy, x, w []T, mean, rstd, own, along float64) {
	sw := step(w)
	for i := range dst {
		dst[i] = T(rstd * (float64(w[i*sw])*float64(dy[i]) - own - (float64(x[i])-mean)*along))
	}
}
