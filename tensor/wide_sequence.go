package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (w *wideKernels) attention(p *kernel.Attention, on attending) error {
	if w.widens("attention", on.q, on.mask) || w.widensAttention(p, on) {
		d := w.widen()
		wide := on.widened(d)
		wide.out = d.out(on.out)
		return d.run(func() error { return w.kernels.attention(p, wide) })
	}
	return w.kernels.attention(p, on)
}

func (w *wideKernels) attentionGrad(ctx context.Context, p *kernel.Attention, on attending) error {
	if w.widens("attentionGrad", on.q, on.mask) || w.widensAttention(p, on) {
		d := w.widen()
		wide := on.widened(d)
		wide.out, wide.dout = d.in(on.out), d.in(on.dout)
		wide.dq, wide.dk, wide.dv, wide.dmask = d.out(on.dq), d.out(on.dk), d.out(on.dv), d.out(on.dmask)
		return d.run(func() error { return w.kernels.attentionGrad(ctx, p, wide) })
	}
	return w.kernels.attentionGrad(ctx, p, on)
}

// widensAttention tells whether an attention of bfloat16 has to be done in float32, on a device that does others.
func (w *wideKernels) widensAttention(p *kernel.Attention, on attending) bool {
	return on.q.dtype == BFloat16 && !w.native.attendsBFloat16(p)
}

// widened are the operands as an operation in float32 reads them, and the results yet in bfloat16.
func (on attending) widened(d *widening) attending {
	wide := on
	wide.q, wide.k, wide.v, wide.mask = d.in(on.q), d.in(on.k), d.in(on.v), d.in(on.mask)
	return wide
}

func (w *wideKernels) cell(c *cellStep) error {
	if w.widens("cell", c.gates) {
		d, wide := w.widen(), *c
		wide.hidden, wide.bias, wide.h, wide.c = d.in(c.hidden), d.in(c.bias), d.in(c.h), d.in(c.c)
		wide.gates, wide.newH, wide.newC, wide.kept = d.both(c.gates), d.out(c.newH), d.out(c.newC), d.out(c.kept)
		return d.run(func() error { return w.kernels.cell(&wide) })
	}
	return w.kernels.cell(c)
}

func (w *wideKernels) cellGrad(c *cellGradStep) error {
	if w.widens("cellGrad", c.gates) {
		d, wide := w.widen(), *c
		wide.dy, wide.dh, wide.h, wide.c = d.in(c.dy), d.in(c.dh), d.in(c.h), d.in(c.c)
		wide.newH, wide.newC, wide.kept = d.in(c.newH), d.in(c.newC), d.in(c.kept)
		wide.gates, wide.dhidden, wide.carry = d.both(c.gates), d.both(c.dhidden), d.both(c.carry)
		return d.run(func() error { return w.kernels.cellGrad(&wide) })
	}
	return w.kernels.cellGrad(c)
}
