package autograd

import "github.com/cistern-ml/cistern/tensor"

// MaxPool2d returns the greatest element of every window of x; see [tensor.Runtime.MaxPool2d].
func (t *Tape) MaxPool2d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.Func("MaxPool2d", []*Variable{x}, func(call *Call) (*tensor.Tensor, error) {
		y, indices, err := t.rt.MaxPool2d(t.ctx, x.value, c)
		if err == nil {
			call.Save(indices)
		}
		return y, err
	}, func(call *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return call.Grads(t.rt.MaxPool2dGrad(t.ctx, g, call.Saved()[0], x.Shape(), c))
	})
}

// AvgPool2d returns the average of every window of x; see [tensor.Runtime.AvgPool2d].
func (t *Tape) AvgPool2d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.Func("AvgPool2d", []*Variable{x}, func(*Call) (*tensor.Tensor, error) {
		return t.rt.AvgPool2d(t.ctx, x.value, c)
	}, func(call *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return call.Grads(t.rt.AvgPool2dGrad(t.ctx, g, x.Shape(), c))
	})
}

// AdaptiveAvgPool2d returns averages of x over as many parts as size says; see [tensor.Runtime.AdaptiveAvgPool2d].
func (t *Tape) AdaptiveAvgPool2d(x *Variable, size ...int) *Variable {
	return t.Func("AdaptiveAvgPool2d", []*Variable{x}, func(*Call) (*tensor.Tensor, error) {
		return t.rt.AdaptiveAvgPool2d(t.ctx, x.value, size...)
	}, func(call *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return call.Grads(t.rt.AdaptiveAvgPool2dGrad(t.ctx, g, x.Shape(), size...))
	})
}
