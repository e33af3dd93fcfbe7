package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) matmul(ctx context.Context, p kernel.MatMul, dst, a, b *Tensor) error {
	parts := p.Parts()
	n := parts * p.Scratch()
	return h.rt.withScratch(ctx, "MatMul", dst, n, func(block memcache.Block) error {
		l := &launch{h: h, name: "matmul"}
		if dst.dtype == Float32 {
			return matmul[float32](l, p, parts, dst, a, b, block, n)
		}
		return matmul[float64](l, p, parts, dst, a, b, block, n)
	})
}

func matmul[T kernel.Float](l *launch, p kernel.MatMul, parts int, dst, a, b *Tensor, block memcache.Block, n int) error {
	x, y, out, tmp := read[T](l, a), read[T](l, b), write[T](l, dst), scratch[T](l, block, n)
	if p.Batch != nil {
		return l.run(func() { kernel.MultiplyBatch(p, parts, out, x, y, tmp) })
	}
	return l.run(func() { kernel.Multiply(p, out, x, y, tmp) })
}

func (h *hostKernels) transpose(dst, x *Tensor) error {
	l := &launch{h: h, name: "transpose"}
	if dst.dtype == Float32 {
		return transpose[float32](l, dst, x)
	}
	return transpose[float64](l, dst, x)
}

func transpose[T kernel.Float](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	rows, cols := x.shape[0], x.shape[1]
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Transpose(out, in, rows, cols) })
}

func (h *hostKernels) sum(dst *Tensor, kept Shape, x *Tensor, divisor float64) error {
	l := &launch{h: h, name: "sum"}
	if dst.dtype == Float32 {
		return sum[float32](l, dst, kept, x, divisor)
	}
	return sum[float64](l, dst, kept, x, divisor)
}

func sum[T kernel.Float](l *launch, dst *Tensor, kept Shape, x *Tensor, divisor float64) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := kernel.NewReduction(x.shape, kept)
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Sum(out, in, divisor, plan) })
}

func (h *hostKernels) repeat(dst, x *Tensor) error {
	l := &launch{h: h, name: "broadcast"}
	if dst.dtype == Float32 {
		return repeat[float32](l, dst, x)
	}
	return repeat[float64](l, dst, x)
}

func repeat[T kernel.Float](l *launch, dst, x *Tensor) error {
	if dst.bytes == 0 {
		return nil
	}
	plan := kernel.NewBroadcast(dst.shape, x.shape, x.shape)
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Zip(kernel.First, out, in, in, plan) })
}
