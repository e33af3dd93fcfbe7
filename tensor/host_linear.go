package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) matmul(ctx context.Context, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	run := matmul[float64]
	if dst.dtype == Float32 {
		run = matmul[float32]
	}
	if err := run(ctx, h, p, dst, a, b, then); err != nil || then.keep == nil {
		return err
	}
	return h.binary(kernel.ReLUGrad, dst, dst, then.keep)
}

func (h *hostKernels) masks(kernel.MatMul, *Tensor, int) bool { return true }

func matmul[T kernel.Float](ctx context.Context, h *hostKernels, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	l := &launch{h: h, name: "matmul"}
	x, y, out := read[T](l, a), read[T](l, b), write[T](l, dst)
	var bias []T
	if then.bias != nil {
		l.name = "matmul, add bias"
		if then.relu {
			l.name = "matmul, add bias, relu"
		}
		bias = read[T](l, then.bias)
	}
	if then.sums != nil {
		if err := h.sum(ctx, then.sums, keptColumns(a), a, 1); err != nil {
			return err
		}
	}
	n := kernel.MatMulScratch[T](p)
	if n == 0 {
		return product(l, p, out, x, y, bias, nil, then)
	}
	return h.rt.withScratch(ctx, "MatMul", dst, n, func(block memcache.Block) error {
		return product(l, p, out, x, y, bias, scratch[T](l, block, n), then)
	})
}

// product queues a product, whose bias is there if then says so, with the scratch memory that it takes.
func product[T kernel.Float](l *launch, p kernel.MatMul, out, x, y, bias, tmp []T, then epilogue) error {
	if then.bias == nil {
		return l.run(func() { multiply(p, out, x, y, tmp) })
	}
	relu := then.relu
	return l.run(func() { kernel.Linear(p, out, x, y, bias, relu, tmp) })
}

func multiply[T kernel.Float](p kernel.MatMul, c, a, b, scratch []T) {
	if p.Batch != nil {
		kernel.MultiplyBatch(p, c, a, b, scratch)
	} else {
		kernel.Multiply(p, c, a, b, scratch)
	}
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

func (h *hostKernels) sum(_ context.Context, dst *Tensor, kept Shape, x *Tensor, divisor float64) error {
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
	plan := l.h.rt.reduction(x.shape, kept)
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Sum(out, in, divisor, plan) })
}

func (h *hostKernels) reluBiasGrad(ctx context.Context, dx, db, dy, y *Tensor) error {
	if dx.bytes == 0 {
		return h.fill(db, 0)
	}
	if err := h.binary(kernel.ReLUGrad, dx, dy, y); err != nil {
		return err
	}
	return h.sum(ctx, db, db.shape, dx, 1)
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
	plan := l.h.rt.broadcast(dst.shape, x.shape, x.shape)
	in, out := read[T](l, x), write[T](l, dst)
	return l.run(func() { kernel.Zip(kernel.First, out, in, in, plan) })
}
