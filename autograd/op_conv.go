package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Conv2d returns the convolution of x by w, plus bias, which may be nil; see [tensor.Layers.Conv2d].
func (t *Tape) Conv2d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("Conv2d", (*tensor.Runtime).Conv2d, false, x, w, bias, c)
}

// Conv1d returns the convolution of x by w, plus bias, which may be nil; see [tensor.Layers.Conv1d].
func (t *Tape) Conv1d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("Conv1d", (*tensor.Runtime).Conv1d, false, x, w, bias, c)
}

// ConvTranspose2d returns the transposed convolution of x by w, plus bias, which may be nil; see
// [tensor.Layers.ConvTranspose2d].
func (t *Tape) ConvTranspose2d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("ConvTranspose2d", (*tensor.Runtime).ConvTranspose2d, true, x, w, bias, c)
}

// ConvTranspose1d returns the transposed convolution of x by w, plus bias, which may be nil; see
// [tensor.Layers.ConvTranspose1d].
func (t *Tape) ConvTranspose1d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("ConvTranspose1d", (*tensor.Runtime).ConvTranspose1d, true, x, w, bias, c)
}

// convolve is one of the runtime's convolutions.
type convolve func(rt *tensor.Runtime, ctx context.Context, x, w, bias *tensor.Tensor, c tensor.ConvConfig) (*tensor.Tensor, error)

func (t *Tape) conv(name string, f convolve, transposed bool, x, w, bias *Variable, cfg tensor.ConvConfig) *Variable {
	var room [3]*Variable
	return opConv.applyAs(name, t, &convolution{f, transposed, cfg}, withOptional(append(room[:0], x, w), bias)...)
}

// convolution is one use of a convolution, of x, w and, if there is one, a bias.
type convolution struct {
	do         convolve
	transposed bool
	cfg        tensor.ConvConfig
}

var opConv = newOp[convolution]("Conv2d")

// Saves saves each factor that the other one's gradient needs.
func (*convolution) Saves(c *Call) { c.saveForOther() }

func (v *convolution) Forward(c *Call) (*tensor.Tensor, error) {
	return v.do(c.Runtime(), c.Context(), c.Input(0), c.Input(1), c.Input(2), v.cfg)
}

// Backward gives the bias, the weights and x their gradients.
func (v *convolution) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, x, w := c.Runtime(), c.Context(), c.Input(0), c.Input(1)
	input, weights := (*tensor.Runtime).ConvInputGrad, (*tensor.Runtime).ConvWeightGrad
	if v.transposed {
		input, weights = (*tensor.Runtime).ConvTransposeInputGrad, (*tensor.Runtime).ConvTransposeWeightGrad
	}
	if c.NeedsGrad(2) {
		var axes [8]int
		d, err := rt.Sum(ctx, g, convAxes(axes[:0], g.Rank(), w.Rank()-2)...)
		if err := c.Give(2, d, err); err != nil {
			return err
		}
	}
	if c.NeedsGrad(1) {
		d, err := weights(rt, ctx, g, x, c.dims(w), v.cfg)
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	if c.NeedsGrad(0) {
		d, err := input(rt, ctx, g, w, c.dims(x), v.cfg)
		if err := c.Give(0, d, err); err != nil {
			return err
		}
	}
	c.Free(g)
	return nil
}

// convAxes appends the dimensions of a convolution's result, except that of the channels.
func convAxes(axes []int, rank, dims int) []int {
	for d := range rank {
		if d != rank-dims-1 {
			axes = append(axes, d)
		}
	}
	return axes
}
