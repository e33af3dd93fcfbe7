package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) conv(ctx context.Context, p *kernel.Conv, y, x, w, bias *Tensor) error {
	n := scratchOf(y, kernel.ConvolveScratch[float32], kernel.ConvolveScratch[float64], p, bias)
	return h.rt.withScratch(ctx, "conv", y, n, func(b memcache.Block) error {
		l := &launch{h: h, name: "conv"}
		if y.dtype == Float32 {
			return convolve(l, kernel.Convolve[float32], p, y, x, w, bias, b, n)
		}
		return convolve(l, kernel.Convolve[float64], p, y, x, w, bias, b, n)
	})
}

func (h *hostKernels) convInputGrad(ctx context.Context, p *kernel.Conv, dx, dy, w, bias *Tensor) error {
	n := scratchOf(dx, kernel.InputGradScratch[float32], kernel.InputGradScratch[float64], p, bias)
	return h.rt.withScratch(ctx, "conv input grad", dx, n, func(b memcache.Block) error {
		l := &launch{h: h, name: "conv input grad"}
		if dx.dtype == Float32 {
			return convolve(l, kernel.ConvolveInputGrad[float32], p, dx, dy, w, bias, b, n)
		}
		return convolve(l, kernel.ConvolveInputGrad[float64], p, dx, dy, w, bias, b, n)
	})
}

// scratchOf is the scratch memory of a kernel for out's dtype.
func scratchOf(out *Tensor, of32, of64 func(p *kernel.Conv, bias bool) int, p *kernel.Conv, bias *Tensor) int {
	if out.dtype == Float32 {
		return of32(p, bias != nil)
	}
	return of64(p, bias != nil)
}

// convolve queues a kernel that computes out of a and w.
func convolve[T kernel.Float](l *launch, f func(p *kernel.Conv, out, a, w, bias, scratch []T), p *kernel.Conv, out, a, w, bias *Tensor, b memcache.Block, n int) error {
	in, weights, add, to, tmp := read[T](l, a), read[T](l, w), readOr[T](l, bias), write[T](l, out), scratch[T](l, b, n)
	return l.run(func() { f(p, to, in, weights, add, tmp) })
}

func (h *hostKernels) convWeightGrad(ctx context.Context, p *kernel.Conv, dw, dy, x *Tensor) error {
	n := kernel.WeightGradScratch[float64](p)
	if dw.dtype == Float32 {
		n = kernel.WeightGradScratch[float32](p)
	}
	return h.rt.withScratch(ctx, "conv weight grad", dw, n, func(b memcache.Block) error {
		l := &launch{h: h, name: "conv weight grad"}
		if dw.dtype == Float32 {
			return convolveWeightGrad[float32](l, p, dw, dy, x, b, n)
		}
		return convolveWeightGrad[float64](l, p, dw, dy, x, b, n)
	})
}

func convolveWeightGrad[T kernel.Float](l *launch, p *kernel.Conv, dw, dy, x *Tensor, b memcache.Block, n int) error {
	g, in, to, tmp := read[T](l, dy), read[T](l, x), write[T](l, dw), scratch[T](l, b, n)
	return l.run(func() { kernel.ConvolveWeightGrad(p, to, g, in, tmp) })
}
