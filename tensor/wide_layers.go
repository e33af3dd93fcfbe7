package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (w *wideKernels) conv(ctx context.Context, p *kernel.Conv, y *Tensor, x *Tensor, wt *Tensor, bias *Tensor) error {
	if w.widens("conv", y, x, wt, bias) {
		d := w.widen()
		x, wt, bias, y := d.in(x), d.in(wt), d.in(bias), d.out(y)
		return d.run(func() error { return w.layerKernels.conv(ctx, p, y, x, wt, bias) })
	}
	return w.layerKernels.conv(ctx, p, y, x, wt, bias)
}

func (w *wideKernels) convInputGrad(ctx context.Context, p *kernel.Conv, dx *Tensor, dy *Tensor, wt *Tensor, bias *Tensor) error {
	if w.widens("convInputGrad", dx, dy, wt, bias) {
		d := w.widen()
		dy, wt, bias, dx := d.in(dy), d.in(wt), d.in(bias), d.out(dx)
		return d.run(func() error { return w.layerKernels.convInputGrad(ctx, p, dx, dy, wt, bias) })
	}
	return w.layerKernels.convInputGrad(ctx, p, dx, dy, wt, bias)
}

func (w *wideKernels) convWeightGrad(ctx context.Context, p *kernel.Conv, dw *Tensor, dy *Tensor, x *Tensor) error {
	if w.widens("convWeightGrad", dw, dy, x) {
		d := w.widen()
		dy, x, dw := d.in(dy), d.in(x), d.out(dw)
		return d.run(func() error { return w.layerKernels.convWeightGrad(ctx, p, dw, dy, x) })
	}
	return w.layerKernels.convWeightGrad(ctx, p, dw, dy, x)
}

func (w *wideKernels) dropout(dst *Tensor, x *Tensor, r kernel.Random, live *Tensor, below uint64, scale float64) error {
	if w.widens("dropout", dst, x, live) {
		d := w.widen()
		x, live, dst := d.in(x), d.in(live), d.out(dst)
		return d.run(func() error { return w.layerKernels.dropout(dst, x, r, live, below, scale) })
	}
	return w.layerKernels.dropout(dst, x, r, live, below, scale)
}

func (w *wideKernels) maxPool(p *kernel.Pool, y *Tensor, indices *Tensor, x *Tensor) error {
	if w.widens("maxPool", y, indices, x) {
		d := w.widen()
		x, y, indices := d.in(x), d.out(y), d.out(indices)
		return d.run(func() error { return w.layerKernels.maxPool(p, y, indices, x) })
	}
	return w.layerKernels.maxPool(p, y, indices, x)
}

func (w *wideKernels) maxPoolGrad(p *kernel.Pool, dx *Tensor, dy *Tensor, indices *Tensor) error {
	if w.widens("maxPoolGrad", dx, dy, indices) {
		d := w.widen()
		dy, indices, dx := d.in(dy), d.in(indices), d.out(dx)
		return d.run(func() error { return w.layerKernels.maxPoolGrad(p, dx, dy, indices) })
	}
	return w.layerKernels.maxPoolGrad(p, dx, dy, indices)
}

func (w *wideKernels) avgPool(p *kernel.Pool, y *Tensor, x *Tensor) error {
	if w.widens("avgPool", y, x) {
		d := w.widen()
		x, y := d.in(x), d.out(y)
		return d.run(func() error { return w.layerKernels.avgPool(p, y, x) })
	}
	return w.layerKernels.avgPool(p, y, x)
}

func (w *wideKernels) avgPoolGrad(p *kernel.Pool, dx *Tensor, dy *Tensor) error {
	if w.widens("avgPoolGrad", dx, dy) {
		d := w.widen()
		dy, dx := d.in(dy), d.out(dx)
		return d.run(func() error { return w.layerKernels.avgPoolGrad(p, dx, dy) })
	}
	return w.layerKernels.avgPoolGrad(p, dx, dy)
}

func (w *wideKernels) normalize(p *kernel.RowNorm, y *Tensor, stats *Tensor, x *Tensor, wt *Tensor, b *Tensor) error {
	if w.widens("normalize", y, stats, x, wt, b) {
		d := w.widen()
		x, wt, b, y, stats := d.in(x), d.in(wt), d.in(b), d.out(y), d.out(stats)
		return d.run(func() error { return w.layerKernels.normalize(p, y, stats, x, wt, b) })
	}
	return w.layerKernels.normalize(p, y, stats, x, wt, b)
}

func (w *wideKernels) normalizeGrad(ctx context.Context, p *kernel.RowNorm, dx, dw, db, dy, x, wt, stats *Tensor, onto bool) error {
	if w.widens("normalizeGrad", dx, dw, db, dy, x, wt, stats) {
		d := w.widen()
		dy, x, wt, stats, dx, dw, db := d.in(dy), d.in(x), d.in(wt), d.in(stats), d.out(dx), d.out(dw), d.out(db)
		return d.run(func() error { return w.layerKernels.normalizeGrad(ctx, p, dx, dw, db, dy, x, wt, stats, false) })
	}
	return w.layerKernels.normalizeGrad(ctx, p, dx, dw, db, dy, x, wt, stats, onto)
}

func (w *wideKernels) normalizeWeightGrad(ctx context.Context, p *kernel.RowNorm, dw *Tensor, db *Tensor, dy *Tensor, x *Tensor, stats *Tensor) error {
	if w.widens("normalizeWeightGrad", dw, db, dy, x, stats) {
		d := w.widen()
		dy, x, stats, dw, db := d.in(dy), d.in(x), d.in(stats), d.out(dw), d.out(db)
		return d.run(func() error { return w.layerKernels.normalizeWeightGrad(ctx, p, dw, db, dy, x, stats) })
	}
	return w.layerKernels.normalizeWeightGrad(ctx, p, dw, db, dy, x, stats)
}

func (w *wideKernels) batchNorm(ctx context.Context, p *kernel.BatchNorm, y *Tensor, stats *Tensor, x *Tensor, wt *Tensor, b *Tensor, mean *Tensor, variance *Tensor, batches *Tensor) error {
	if w.widens("batchNorm", y, stats, x, wt, b, mean, variance, batches) {
		d := w.widen()
		x, wt, b, y, stats, mean, variance, batches := d.in(x), d.in(wt), d.in(b), d.out(y), d.out(stats), d.both(mean), d.both(variance), d.both(batches)
		return d.run(func() error { return w.layerKernels.batchNorm(ctx, p, y, stats, x, wt, b, mean, variance, batches) })
	}
	return w.layerKernels.batchNorm(ctx, p, y, stats, x, wt, b, mean, variance, batches)
}

func (w *wideKernels) reluBiasGrad(ctx context.Context, dx *Tensor, db *Tensor, dy *Tensor, y *Tensor) error {
	if w.widens("reluBiasGrad", dx, db, dy, y) {
		d := w.widen()
		dy, y, dx, db := d.in(dy), d.in(y), d.out(dx), d.out(db)
		return d.run(func() error { return w.layerKernels.reluBiasGrad(ctx, dx, db, dy, y) })
	}
	return w.layerKernels.reluBiasGrad(ctx, dx, db, dy, y)
}

func (w *wideKernels) batchNormGrad(ctx context.Context, p *kernel.BatchNorm, dx *Tensor, dw *Tensor, db *Tensor, dy *Tensor, x *Tensor, wt *Tensor, stats *Tensor) error {
	if w.widens("batchNormGrad", dx, dw, db, dy, x, wt, stats) {
		d := w.widen()
		dy, x, wt, stats, dx, dw, db := d.in(dy), d.in(x), d.in(wt), d.in(stats), d.out(dx), d.out(dw), d.out(db)
		return d.run(func() error { return w.layerKernels.batchNormGrad(ctx, p, dx, dw, db, dy, x, wt, stats) })
	}
	return w.layerKernels.batchNormGrad(ctx, p, dx, dw, db, dy, x, wt, stats)
}
