package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// MaxPool2d returns the greatest element of every window of x; see [tensor.Layers.MaxPool2d].
func (t *Tape) MaxPool2d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool("MaxPool2d", x, c, true)
}

//go:noinline // as Add
func (t *Tape) pool(name string, x *Variable, c tensor.PoolingConfig, greatest bool) *Variable {
	return opPool.applyAs(name, t, &pooling{c, greatest}, x)
}

// pooling is one use of MaxPool2d, or of AvgPool2d.
type pooling struct {
	cfg      tensor.PoolingConfig
	greatest bool
}

var opPool = newOp[pooling]("MaxPool2d")

// Forward saves the indices of the greatest elements.
func (p *pooling) Forward(c *Call) (*tensor.Tensor, error) {
	if !p.greatest {
		return c.Runtime().AvgPool2d(c.Context(), c.Input(0), p.cfg)
	}
	y, indices, err := c.Runtime().MaxPool2d(c.Context(), c.Input(0), p.cfg)
	return c.saving(y, err, indices)
}

func (p *pooling) Backward(c *Call, g *tensor.Tensor) (err error) {
	var d *tensor.Tensor
	shape := c.dims(c.Input(0))
	if p.greatest {
		d, err = c.Runtime().MaxPool2dGrad(c.Context(), g, c.Saved()[0], shape, p.cfg)
		c.doneOwn()
	} else {
		d, err = c.Runtime().AvgPool2dGrad(c.Context(), g, shape, p.cfg)
	}
	return c.GiveReplacing(0, g, d, err)
}

// AvgPool2d returns the average of every window of x; see [tensor.Layers.AvgPool2d].
func (t *Tape) AvgPool2d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool("AvgPool2d", x, c, false)
}

// AdaptiveAvgPool2d returns averages of x over parts, whose number in each dimension is size; see
// [tensor.Layers.AdaptiveAvgPool2d].
func (t *Tape) AdaptiveAvgPool2d(x *Variable, size ...int) *Variable {
	return opAdaptiveAvgPool.Apply(t, adaptivePooling{newDimensions(size)}, x)
}

// adaptivePooling is one use of AdaptiveAvgPool2d.
type adaptivePooling struct{ size dimensions }

var opAdaptiveAvgPool = newOp[adaptivePooling]("AdaptiveAvgPool2d")

func (p *adaptivePooling) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().AdaptiveAvgPool2d(c.Context(), c.Input(0), p.size.list()...)
}

func (p *adaptivePooling) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().AdaptiveAvgPool2dGrad(c.Context(), g, c.Input(0).Shape(), p.size.list()...)
	return c.GiveReplacing(0, g, d, err)
}

// MaxPool1d is MaxPool2d for x (n, channels, length), or (channels, length). The lists of c have
// one number (torch.nn.functional.max_pool1d).
func (t *Tape) MaxPool1d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool1d(x, func(x *Variable) *Variable { return t.MaxPool2d(x, oneRow(c)) })
}

// AvgPool1d is AvgPool2d for x (n, channels, length), or (channels, length). The lists of c have
// one number (torch.nn.functional.avg_pool1d).
func (t *Tape) AvgPool1d(x *Variable, c tensor.PoolingConfig) *Variable {
	return t.pool1d(x, func(x *Variable) *Variable { return t.AvgPool2d(x, oneRow(c)) })
}

// AdaptiveAvgPool1d is AdaptiveAvgPool2d for x (n, channels, length), or (channels, length)
// (torch.nn.functional.adaptive_avg_pool1d).
func (t *Tape) AdaptiveAvgPool1d(x *Variable, size int) *Variable {
	return t.pool1d(x, func(x *Variable) *Variable { return t.AdaptiveAvgPool2d(x, 1, size) })
}

// oneRow returns c for pictures of one row.
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
		if shape == nil {
			return y // there was an error
		}
		return t.Reshape(y, slices.Delete(shape, len(shape)-2, len(shape)-1)...)
	})
}
