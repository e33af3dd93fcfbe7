package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

func (w *wideKernels) matmul(ctx context.Context, p kernel.MatMul, dst, a, b *Tensor, then epilogue) error {
	if w.widens("matmul", dst, a, b, then.bias, then.sums, then.keep) {
		d := w.widen()
		p, a, b, then, dst := p, d.in(a), d.in(b), epilogue{d.in(then.bias), then.relu, d.out(then.sums), d.in(then.keep)}, d.out(dst)
		return d.run(func() error { return w.kernels.matmul(ctx, p, dst, a, b, then) })
	}
	return w.kernels.matmul(ctx, p, dst, a, b, then)
}

func (w *wideKernels) unary(u kernel.Unary, dst *Tensor, x *Tensor, c float64) error {
	if w.widens("unary", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.unary(u, dst, x, c) })
	}
	return w.kernels.unary(u, dst, x, c)
}

func (w *wideKernels) binary(op kernel.Binary, dst *Tensor, a *Tensor, b *Tensor) error {
	if w.widens("binary", dst, a, b) {
		d := w.widen()
		a, b, dst := d.in(a), d.in(b), d.out(dst)
		return d.run(func() error { return w.kernels.binary(op, dst, a, b) })
	}
	return w.kernels.binary(op, dst, a, b)
}

func (w *wideKernels) apply(f kernel.Function, dst *Tensor, x *Tensor, c float64, e float64) error {
	if w.widens("apply", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.apply(f, dst, x, c, e) })
	}
	return w.kernels.apply(f, dst, x, c, e)
}

func (w *wideKernels) applyGrad(f kernel.Function, dst *Tensor, dy *Tensor, saved *Tensor, c float64, e float64) error {
	if w.widens("applyGrad", dst, dy, saved) {
		d := w.widen()
		dy, saved, dst := d.in(dy), d.in(saved), d.out(dst)
		return d.run(func() error { return w.kernels.applyGrad(f, dst, dy, saved, c, e) })
	}
	return w.kernels.applyGrad(f, dst, dy, saved, c, e)
}

func (w *wideKernels) extremeGrad(greatest bool, dst *Tensor, dy *Tensor, a *Tensor, b *Tensor) error {
	if w.widens("extremeGrad", dst, dy, a, b) {
		d := w.widen()
		dy, a, b, dst := d.in(dy), d.in(a), d.in(b), d.out(dst)
		return d.run(func() error { return w.kernels.extremeGrad(greatest, dst, dy, a, b) })
	}
	return w.kernels.extremeGrad(greatest, dst, dy, a, b)
}

func (w *wideKernels) addBias(dst *Tensor, x *Tensor, bias *Tensor, relu bool) error {
	if w.widens("addBias", dst, x, bias) {
		d := w.widen()
		x, bias, dst := d.in(x), d.in(bias), d.out(dst)
		return d.run(func() error { return w.kernels.addBias(dst, x, bias, relu) })
	}
	return w.kernels.addBias(dst, x, bias, relu)
}

func (w *wideKernels) repeat(dst *Tensor, x *Tensor) error {
	if w.widens("repeat", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.repeat(dst, x) })
	}
	return w.kernels.repeat(dst, x)
}

func (w *wideKernels) transpose(dst *Tensor, x *Tensor) error {
	if w.widens("transpose", dst, x) {
		d := w.widen()
		x, dst := d.in(x), d.out(dst)
		return d.run(func() error { return w.kernels.transpose(dst, x) })
	}
	return w.kernels.transpose(dst, x)
}
