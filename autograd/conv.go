package autograd

import (
	"context"

	"github.com/cistern-ml/cistern/tensor"
)

// Conv2d is the convolution of x by w, plus bias, which may be nil; see [tensor.Runtime.Conv2d].
func (t *Tape) Conv2d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("Conv2d", t.rt.Conv2d, false, x, w, bias, c)
}

// Conv1d is the convolution of x by w, plus bias, which may be nil; see [tensor.Runtime.Conv1d].
func (t *Tape) Conv1d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("Conv1d", t.rt.Conv1d, false, x, w, bias, c)
}

// ConvTranspose2d is the transposed convolution of x by w, plus bias, which may be nil; see
// [tensor.Runtime.ConvTranspose2d].
func (t *Tape) ConvTranspose2d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("ConvTranspose2d", t.rt.ConvTranspose2d, true, x, w, bias, c)
}

// ConvTranspose1d is the transposed convolution of x by w, plus bias, which may be nil; see
// [tensor.Runtime.ConvTranspose1d].
func (t *Tape) ConvTranspose1d(x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	return t.conv("ConvTranspose1d", t.rt.ConvTranspose1d, true, x, w, bias, c)
}

// convolve is one of the runtime's convolutions.
type convolve func(ctx context.Context, x, w, bias *tensor.Tensor, c tensor.ConvConfig) (*tensor.Tensor, error)

func (t *Tape) conv(name string, f convolve, transposed bool, x, w, bias *Variable, c tensor.ConvConfig) *Variable {
	inputs := append(make([]*Variable, 0, 3), x, w)
	if bias != nil {
		inputs = append(inputs, bias)
	}
	return t.Func(name, inputs, func(call *Call) (*tensor.Tensor, error) {
		if call.NeedsGrad(0) {
			call.Save(w.value)
		}
		if call.NeedsGrad(1) {
			call.Save(x.value)
		}
		return f(t.ctx, x.value, w.value, bias.Value(), c)
	}, func(call *Call, g *tensor.Tensor) (grads []*tensor.Tensor, err error) {
		input, weights := t.rt.ConvInputGrad, t.rt.ConvWeightGrad
		if transposed {
			input, weights = t.rt.ConvTransposeInputGrad, t.rt.ConvTransposeWeightGrad
		}
		grads = call.room.grads[:len(call.inputs)]
		if bias != nil && call.NeedsGrad(2) {
			if grads[2], err = t.rt.Sum(t.ctx, g, convAxes(g.Rank(), w.Rank()-2)...); err != nil {
				return nil, err
			}
		}
		if call.NeedsGrad(1) {
			if grads[1], err = weights(t.ctx, g, x.value, w.Shape(), c); err != nil {
				return nil, err
			}
		}
		if call.NeedsGrad(0) {
			grads[0], err = input(t.ctx, g, w.value, x.Shape(), c)
		}
		return grads, err
	})
}

// convAxes are the dimensions of a convolution's result but that of the channels.
func convAxes(rank, dims int) (axes []int) {
	for d := range rank {
		if d != rank-dims-1 {
			axes = append(axes, d)
		}
	}
	return axes
}
