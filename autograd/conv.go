package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Conv2d is the convolution of x by w, plus bias, which may be nil; see [tensor.Layers.Conv2d].
func (t *Tape) Conv2d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("Conv2d", (*tensor.Runtime).Conv2d, false, x, w, bias, c)
}

// Conv1d is the convolution of x by w, plus bias, which may be nil; see [tensor.Layers.Conv1d].
func (t *Tape) Conv1d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("Conv1d", (*tensor.Runtime).Conv1d, false, x, w, bias, c)
}

// ConvTranspose2d is the transposed convolution of x by w, plus bias, which may be nil; see
// [tensor.Layers.ConvTranspose2d].
func (t *Tape) ConvTranspose2d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("ConvTranspose2d", (*tensor.Runtime).ConvTranspose2d, true, x, w, bias, c)
}

// ConvTranspose1d is the transposed convolution of x by w, plus bias, which may be nil; see
// [tensor.Layers.ConvTranspose1d].
func (t *Tape) ConvTranspose1d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("ConvTranspose1d", (*tensor.Runtime).ConvTranspose1d, true, x, w, bias, c)
}

// convolve is one of the runtime's convolutions.
type convolve func(rt *tensor.Runtime, ctx context.Context, x, w, bias *tensor.Tensor, c tensor.ConvConfig) (*tensor.Tensor, error)

func (t *Tape) conv(name string, f convolve, transposed bool, x, w, bias *Variable, cfg tensor.ConvConfig) *Variable {
	var room [3]*Variable
	inputs := withOptional(append(room[:0], x, w), bias)
	if !t.begin(name, inputs...) {
		return t.inert()
	}
	c := t.convolutions.take()
	c.do, c.transposed, c.bias, c.cfg = f, transposed, bias, cfg
	return t.apply(name, c, &c.Call, inputs, true)
}

// convolution is one use of a convolution, of x and w.
type convolution struct {
	Call
	do         convolve
	transposed bool
	bias       *Variable // or nil
	cfg        tensor.ConvConfig
}

func (c *convolution) forward() (*tensor.Tensor, error) {
	if c.NeedsGrad(0) {
		c.Save(c.Input(1))
	}
	if c.NeedsGrad(1) {
		c.Save(c.Input(0))
	}
	return c.tape.computeIfRead(func() (*tensor.Tensor, error) {
		return c.do(c.tape.rt, c.tape.ctx, c.Input(0), c.Input(1), c.bias.tensor(), c.cfg)
	})
}

func (c *convolution) backward(g *tensor.Tensor) (grads []*tensor.Tensor, err error) {
	t, x, w := c.tape, c.Input(0), c.Input(1)
	input, weights := (*tensor.Runtime).ConvInputGrad, (*tensor.Runtime).ConvWeightGrad
	if c.transposed {
		input, weights = (*tensor.Runtime).ConvTransposeInputGrad, (*tensor.Runtime).ConvTransposeWeightGrad
	}
	room := &c.room.dims
	grads = c.room.grads[:len(c.inputs)]
	if c.bias != nil && c.NeedsGrad(2) {
		if grads[2], err = t.rt.Sum(t.ctx, g, convAxes(room[:0], g.Rank(), w.Rank()-2)...); err != nil {
			return nil, err
		}
	}
	if c.NeedsGrad(1) {
		if grads[1], err = weights(t.rt, t.ctx, g, x, tensor.AppendShape(room[:0], w), c.cfg); err != nil {
			return nil, err
		}
	}
	if c.NeedsGrad(0) {
		grads[0], err = input(t.rt, t.ctx, g, w, tensor.AppendShape(room[:0], x), c.cfg)
	}
	return grads, err
}

func (c *convolution) give(s *slab) { s.convolutions.give(c) }

// convAxes appends the dimensions of a convolution's result but that of the channels.
func convAxes(axes []int, rank, dims int) []int {
	for d := range rank {
		if d != rank-dims-1 {
			axes = append(axes, d)
		}
	}
	return axes
}
