package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// MaxPool2d returns the greatest element of every window of x; see [tensor.Layers.MaxPool2d].
func (t *Tape) MaxPool2d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool("MaxPool2d", x, c, true)
}

func (t *Tape) pool(name string, x *Variable, c tensor.PoolingConfig, greatest bool) *Variable {
	if !t.begin(name, x) {
		return t.inert()
	}
	p := t.pools.take()
	p.cfg, p.greatest = c, greatest
	return t.apply(name, p, &p.Call, []*Variable{x}, true)
}

// pooling is one use of MaxPool2d, or of AvgPool2d.
type pooling struct {
	Call
	cfg      tensor.PoolingConfig
	greatest bool
}

func (p *pooling) forward() (*tensor.Tensor, error) {
	t := p.tape
	if !p.greatest {
		return t.rt.AvgPool2d(t.ctx, p.Input(0), p.cfg)
	}
	y, indices, err := t.rt.MaxPool2d(t.ctx, p.Input(0), p.cfg)
	if err == nil {
		p.Save(indices)
	}
	return y, err
}

func (p *pooling) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	t := p.tape
	shape := tensor.AppendShape(p.room.dims[:0], p.Input(0))
	if !p.greatest {
		return p.Grads(t.rt.AvgPool2dGrad(t.ctx, g, shape, p.cfg))
	}
	return p.Grads(t.rt.MaxPool2dGrad(t.ctx, g, p.Saved()[0], shape, p.cfg))
}

func (p *pooling) give(s *slab) { s.pools.give(p) }

// AvgPool2d returns the average of every window of x; see [tensor.Layers.AvgPool2d].
func (t *Tape) AvgPool2d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool("AvgPool2d", x, c, false)
}

// AdaptiveAvgPool2d returns averages of x over as many parts as size says; see
// [tensor.Layers.AdaptiveAvgPool2d].
func (t *Tape) AdaptiveAvgPool2d(x *Variable, size ...int) *Variable {
	size = slices.Clone(size) // the caller may write its list before Backward
	return t.Func("AdaptiveAvgPool2d", []*Variable{x}, func(*Call) (*tensor.Tensor, error) {
		return t.rt.AdaptiveAvgPool2d(t.ctx, x.value, size...)
	}, func(call *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return call.Grads(t.rt.AdaptiveAvgPool2dGrad(t.ctx, g, x.Shape(), size...))
	})
}

// MaxPool1d is MaxPool2d for x (n, channels, length), or (channels, length): the lists of c have one number
// (torch.nn.functional.max_pool1d).
func (t *Tape) MaxPool1d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool1d(x, func(x *Variable) *Variable { return t.MaxPool2d(x, oneRow(c)) })
}

// AvgPool1d is AvgPool2d for x (n, channels, length), or (channels, length): the lists of c have one number
// (torch.nn.functional.avg_pool1d).
func (t *Tape) AvgPool1d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool1d(x, func(x *Variable) *Variable { return t.AvgPool2d(x, oneRow(c)) })
}

// AdaptiveAvgPool1d is AdaptiveAvgPool2d for x (n, channels, length), or (channels, length)
// (torch.nn.functional.adaptive_avg_pool1d).
func (t *Tape) AdaptiveAvgPool1d(x *Variable, size int) *Variable {
	return t.pool1d(x, func(x *Variable) *Variable { return t.AdaptiveAvgPool2d(x, 1, size) })
}

// oneRow is c for pictures of one row.
func oneRow(c tensor.PoolingConfig) tensor.PoolingConfig {
	row := func(list []int, n int) []int {
		if list == nil {
			return nil
		}
		return append([]int{n}, list...)
	}
	c.Kernel, c.Stride, c.Padding, c.Dilation = row(c.Kernel, 1), row(c.Stride, 1), row(c.Padding, 0), row(c.Dilation, 1)
	return c
}

// pool1d pools sequences as pictures of one row.
func (t *Tape) pool1d(x *Variable, pool func(x *Variable) *Variable) *Variable {
	return t.Frame(func() *Variable {
		y := pool(t.Unsqueeze(x, -2))
		shape := y.Shape()
		if len(shape) < 2 {
			return y // there was an error
		}
		return t.Reshape(y, slices.Delete(shape, len(shape)-2, len(shape)-1)...)
	})
}
