package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (w *wideKernels) sum(ctx context.Context, dst *Tensor, kept Shape, x *Tensor, divisor float64) error {
	if w.widens("sum", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.sum(ctx, dst, kept, x, divisor) })
	}
	return w.kernels.sum(ctx, dst, kept, x, divisor)
}

func (w *wideKernels) reduce(s kernel.Statistic, dst *Tensor, kept Shape, x *Tensor, c float64) error {
	if w.widens("reduce", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.reduce(s, dst, kept, x, c) })
	}
	return w.kernels.reduce(s, dst, kept, x, c)
}

func (w *wideKernels) reduceGrad(s kernel.Statistic, dst *Tensor, dy *Tensor, x *Tensor, y *Tensor, kept Shape, c float64) error {
	if w.widens("reduceGrad", dst, dy, x, y) {
		d := w.widen()
		dy, x, y, dst := d.in(dy), d.in(x), d.in(y), d.out(dst)
		return d.run(func() error { return w.kernels.reduceGrad(s, dst, dy, x, y, kept, c) })
	}
	return w.kernels.reduceGrad(s, dst, dy, x, y, kept, c)
}

func (w *wideKernels) softmax(dst *Tensor, x *Tensor, r kernel.Rows, log bool) error {
	if w.widens("softmax", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.softmax(dst, x, r, log) })
	}
	return w.kernels.softmax(dst, x, r, log)
}

func (w *wideKernels) softmaxGrad(dst *Tensor, dy *Tensor, y *Tensor, r kernel.Rows, log bool) error {
	if w.widens("softmaxGrad", dst, dy, y) {
		d := w.widen()
		dy, y, dst := d.in(dy), d.in(y), d.out(dst)
		return d.run(func() error { return w.kernels.softmaxGrad(dst, dy, y, r, log) })
	}
	return w.kernels.softmaxGrad(dst, dy, y, r, log)
}

func (w *wideKernels) argMax(dst *Tensor, x *Tensor, r kernel.Rows) error {
	if w.widens("argMax", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.argMax(dst, x, r) })
	}
	return w.kernels.argMax(dst, x, r)
}

func (w *wideKernels) takeGrad(dst *Tensor, dy *Tensor, order *Tensor, t kernel.Take, mean bool) error {
	if w.widens("takeGrad", dst, dy, order) {
		d := w.widen()
		dy, order, dst := d.in(dy), d.in(order), d.both(dst)
		return d.run(func() error { return w.kernels.takeGrad(dst, dy, order, t, mean) })
	}
	return w.kernels.takeGrad(dst, dy, order, t, mean)
}

func (w *wideKernels) gatherGrad(dst *Tensor, dy *Tensor, index *Tensor, g *kernel.Gather) error {
	if w.widens("gatherGrad", dst, dy, index) {
		d := w.widen()
		dy, index, dst := d.in(dy), d.in(index), d.both(dst)
		return d.run(func() error { return w.kernels.gatherGrad(dst, dy, index, g) })
	}
	return w.kernels.gatherGrad(dst, dy, index, g)
}

func (w *wideKernels) crossEntropy(ctx context.Context, e kernel.Entropy, loss *Tensor, logits *Tensor, labels *Tensor, weights *Tensor, fault *storage) error {
	if w.widens("crossEntropy", loss, logits, labels, weights) {
		d := w.widen()
		logits, labels, weights, loss := d.in(logits), d.in(labels), d.in(weights), d.out(loss)
		return d.run(func() error { return w.kernels.crossEntropy(ctx, e, loss, logits, labels, weights, fault) })
	}
	return w.kernels.crossEntropy(ctx, e, loss, logits, labels, weights, fault)
}

func (w *wideKernels) crossEntropyGrad(ctx context.Context, e kernel.Entropy, dst *Tensor, logits *Tensor, labels *Tensor, weights *Tensor, dloss *Tensor) error {
	if w.widens("crossEntropyGrad", dst, logits, labels, weights, dloss) {
		d := w.widen()
		logits, labels, weights, dloss, dst := d.in(logits), d.in(labels), d.in(weights), d.in(dloss), d.out(dst)
		return d.run(func() error { return w.kernels.crossEntropyGrad(ctx, e, dst, logits, labels, weights, dloss) })
	}
	return w.kernels.crossEntropyGrad(ctx, e, dst, logits, labels, weights, dloss)
}

func (w *wideKernels) loss(ctx context.Context, dst *Tensor, p *lossOperands) error {
	if w.widens("loss", dst, p.x, p.t, p.weight, p.pos) {
		d := w.widen()
		wide, dst := p.widened(d), d.out(dst)
		return d.run(func() error { return w.kernels.loss(ctx, dst, wide) })
	}
	return w.kernels.loss(ctx, dst, p)
}

func (w *wideKernels) lossGrad(dst, dloss *Tensor, p *lossOperands, target bool) error {
	if w.widens("lossGrad", dst, dloss, p.x, p.t, p.weight, p.pos) {
		d := w.widen()
		wide, dloss, dst := p.widened(d), d.in(dloss), d.out(dst)
		return d.run(func() error { return w.kernels.lossGrad(dst, dloss, wide, target) })
	}
	return w.kernels.lossGrad(dst, dloss, p, target)
}

// widened are the operands as an operation in float32 reads them.
func (p *lossOperands) widened(d *widening) *lossOperands {
	return &lossOperands{kind: p.kind, x: d.in(p.x), t: d.in(p.t), weight: d.in(p.weight), pos: d.in(p.pos), delta: p.delta, divisor: p.divisor, each: p.each}
}
