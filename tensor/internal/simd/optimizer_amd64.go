//go:build !purego

package simd

import "unsafe"

// Adam is a step of Adam with the gradients g and the moments m and v, in place. top holds the greatest second moments (amsgrad), or
// nothing. It is false, and nothing has been done, if the active level has no such function. All have the length of p, which is not 0.
func Adam[T Float](p, g, m, v, top []T, s *AdamScalars[T]) bool {
	l, n, single := Active(), len(p), unsafe.Sizeof(p[0]) == 4
	if l == Generic {
		return false
	}
	a, b, c, d, k := unsafe.Pointer(&p[0]), unsafe.Pointer(&g[0]), unsafe.Pointer(&m[0]), unsafe.Pointer(&v[0]), unsafe.Pointer(s)
	if len(top) > 0 {
		e := unsafe.Pointer(&top[0])
		switch {
		case l == AVX512 && single:
			adamGreatestFloat32AVX512((*float32)(a), (*float32)(b), (*float32)(c), (*float32)(d), (*float32)(e), n, (*[9]float32)(k))
		case l == AVX512:
			adamGreatestFloat64AVX512((*float64)(a), (*float64)(b), (*float64)(c), (*float64)(d), (*float64)(e), n, (*[9]float64)(k))
		case single:
			adamGreatestFloat32AVX2((*float32)(a), (*float32)(b), (*float32)(c), (*float32)(d), (*float32)(e), n, (*[9]float32)(k))
		default:
			adamGreatestFloat64AVX2((*float64)(a), (*float64)(b), (*float64)(c), (*float64)(d), (*float64)(e), n, (*[9]float64)(k))
		}
		return true
	}
	switch {
	case l == AVX512 && single:
		adamFloat32AVX512((*float32)(a), (*float32)(b), (*float32)(c), (*float32)(d), n, (*[9]float32)(k))
	case l == AVX512:
		adamFloat64AVX512((*float64)(a), (*float64)(b), (*float64)(c), (*float64)(d), n, (*[9]float64)(k))
	case single:
		adamFloat32AVX2((*float32)(a), (*float32)(b), (*float32)(c), (*float32)(d), n, (*[9]float32)(k))
	default:
		adamFloat64AVX2((*float64)(a), (*float64)(b), (*float64)(c), (*float64)(d), n, (*[9]float64)(k))
	}
	return true
}

type sgdStep[T Float] = func(p, g, buf *T, n int, s *[5]T)

func plainSGD[T Float](f func(p, g *T, n int, s *[5]T)) sgdStep[T] {
	return func(p, g, _ *T, n int, s *[5]T) { f(p, g, n, s) }
}

var (
	sgd32 = [levels][5]sgdStep[float32]{
		AVX2:   {plainSGD(sgdFloat32AVX2), sgdMomentumFloat32AVX2, sgdMomentumNesterovFloat32AVX2, sgdFirstFloat32AVX2, sgdFirstNesterovFloat32AVX2},
		AVX512: {plainSGD(sgdFloat32AVX512), sgdMomentumFloat32AVX512, sgdMomentumNesterovFloat32AVX512, sgdFirstFloat32AVX512, sgdFirstNesterovFloat32AVX512},
	}
	sgd64 = [levels][5]sgdStep[float64]{
		AVX2:   {plainSGD(sgdFloat64AVX2), sgdMomentumFloat64AVX2, sgdMomentumNesterovFloat64AVX2, sgdFirstFloat64AVX2, sgdFirstNesterovFloat64AVX2},
		AVX512: {plainSGD(sgdFloat64AVX512), sgdMomentumFloat64AVX512, sgdMomentumNesterovFloat64AVX512, sgdFirstFloat64AVX512, sgdFirstNesterovFloat64AVX512},
	}
)

// SGD is a step of gradient descent with the gradients g and the momentum buf, in place; it is false, and nothing has been done, if the
// active level has no such function. All have the length of p, which is not 0; buf may be empty without momentum.
func SGD[T Float](how Momentum, p, g, buf []T, s *SGDScalars[T]) bool {
	l, k := Active(), (*[5]T)(unsafe.Pointer(s))
	f, ok := any(sgd32[l][how]).(sgdStep[T])
	if !ok {
		f = any(sgd64[l][how]).(sgdStep[T])
	}
	if f == nil {
		return false
	}
	f(&p[0], &g[0], unsafe.SliceData(buf), len(p), k)
	return true
}
