package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (h *hostKernels) normalize(p *kernel.RowNorm, y, stats, x, w, b *Tensor) error {
	l := &launch{h: h, name: "normalize"}
	if y.dtype == Float32 {
		return normalize[float32](l, p, y, stats, x, w, b)
	}
	return normalize[float64](l, p, y, stats, x, w, b)
}

func normalize[T kernel.Float](l *launch, p *kernel.RowNorm, y, stats, x, w, b *Tensor) error {
	in, scale, shift, out, s := read[T](l, x), readOr[T](l, w), readOr[T](l, b), write[T](l, y), write[float64](l, stats)
	return l.run(func() { kernel.Normalize(p, out, s, in, scale, shift) })
}

func (h *hostKernels) addNormalize(*kernel.RowNorm, *Tensor, *Tensor, *Tensor, *Tensor, *Tensor, *Tensor, *Tensor) (bool, error) {
	return false, nil
}

func (h *hostKernels) normalizeGradAdds(Dtype) bool { return false }

func (h *hostKernels) normalizeGrad(ctx context.Context, p *kernel.RowNorm, dx, dw, db, dy, x, w, stats *Tensor, _ bool) error {
	l := &launch{h: h, name: "normalize grad"}
	run := normalizeGrad[float64]
	if dx.dtype == Float32 {
		run = normalizeGrad[float32]
	}
	err := run(l, p, dx, dy, x, w, stats)
	if err != nil || dw == nil && db == nil {
		return err
	}
	return h.normalizeWeightGrad(ctx, p, dw, db, dy, x, stats)
}

func normalizeGrad[T kernel.Float](l *launch, p *kernel.RowNorm, dx, dy, x, w, stats *Tensor) error {
	g, in, scale, s, out := read[T](l, dy), read[T](l, x), readOr[T](l, w), read[float64](l, stats), write[T](l, dx)
	return l.run(func() { kernel.NormalizeGrad(p, out, g, in, scale, s) })
}

func (h *hostKernels) normalizeWeightGrad(_ context.Context, p *kernel.RowNorm, dw, db, dy, x, stats *Tensor) error {
	l := &launch{h: h, name: "normalize weight grad"}
	if x.dtype == Float32 {
		return normalizeWeightGrad[float32](l, p, dw, db, dy, x, stats)
	}
	return normalizeWeightGrad[float64](l, p, dw, db, dy, x, stats)
}

func normalizeWeightGrad[T kernel.Float](l *launch, p *kernel.RowNorm, dw, db, dy, x, stats *Tensor) error {
	g, in, s, scale, shift := read[T](l, dy), read[T](l, x), read[float64](l, stats), writeOr[T](l, dw), writeOr[T](l, db)
	return l.run(func() { kernel.NormalizeWeightGrad(p, scale, shift, g, in, s) })
}

func (h *hostKernels) batchNorm(_ context.Context, p *kernel.BatchNorm, y, stats, x, w, b, mean, variance, batches *Tensor) error {
	l := &launch{h: h, name: "batch norm"}
	if y.dtype == Float32 {
		return batchNorm[float32](l, p, y, stats, x, w, b, mean, variance, batches)
	}
	return batchNorm[float64](l, p, y, stats, x, w, b, mean, variance, batches)
}

func batchNorm[T kernel.Float](l *launch, p *kernel.BatchNorm, y, stats, x, w, b, mean, variance, batches *Tensor) error {
	keep := readOr[T]
	if p.Training {
		keep = updateOr[T]
	}
	run := kernel.Running[T]{Mean: keep(l, mean), Var: keep(l, variance)}
	if p.Training {
		run.Batches = updateOr[int64](l, batches)
	}
	in, scale, shift, out, s := read[T](l, x), readOr[T](l, w), readOr[T](l, b), write[T](l, y), write[float64](l, stats)
	return l.run(func() { kernel.NormalizeBatch(p, out, s, in, scale, shift, run) })
}

func (h *hostKernels) batchNormGrad(_ context.Context, p *kernel.BatchNorm, dx, dw, db, dy, x, w, stats *Tensor) error {
	l := &launch{h: h, name: "batch norm grad"}
	if x.dtype == Float32 {
		return batchNormGrad[float32](l, p, dx, dw, db, dy, x, w, stats)
	}
	return batchNormGrad[float64](l, p, dx, dw, db, dy, x, w, stats)
}

func batchNormGrad[T kernel.Float](l *launch, p *kernel.BatchNorm, dx, dw, db, dy, x, w, stats *Tensor) error {
	g, in, scale, s := read[T](l, dy), read[T](l, x), readOr[T](l, w), read[float64](l, stats)
	out, dscale, dshift := writeOr[T](l, dx), writeOr[T](l, dw), writeOr[T](l, db)
	return l.run(func() { kernel.NormalizeBatchGrad(p, out, dscale, dshift, g, in, scale, s) })
}
