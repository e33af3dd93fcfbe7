package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// BatchNorm returns x (n, channels, ...) with each channel normalised, times weight plus bias (channels), either of which may
// be nil; see [tensor.Runtime.BatchNorm]. Whether it trains is c's to say; the layer [BatchNorm] asks the tape.
func (t *Tape) BatchNorm(x, weight, bias *Variable, c tensor.BatchNormConfig) *Variable {
	if t.recomputing && c.Training { // the running statistics have the batch already
		c.Mean, c.Var, c.Batches = nil, nil, nil
	}
	return t.normalize("BatchNorm", x, weight, bias, func() (y, stats *tensor.Tensor, err error) {
		return t.rt.BatchNorm(t.ctx, x.value, weight.Value(), bias.Value(), c)
	}, func(g, w, stats *tensor.Tensor, want tensor.NormGrads) (dx, dw, db *tensor.Tensor, err error) {
		return t.rt.BatchNormGrad(t.ctx, inPlace(g), g, x.value, w, stats, c, want)
	})
}

// LayerNorm returns x, normalised over its last dimensions, which shape is, times weight plus bias of that shape, either of
// which may be nil (torch.nn.functional.layer_norm). An eps of 0 is 1e-5.
func (t *Tape) LayerNorm(x, weight, bias *Variable, eps float64, shape ...int) *Variable {
	return t.rows("LayerNorm", x, weight, bias, tensor.NormConfig{Shape: slices.Clone(shape), Eps: eps})
}

// GroupNorm returns x (n, channels, ...), normalised over each of so many groups of channels, times weight plus bias
// (channels), either of which may be nil (torch.nn.functional.group_norm). An eps of 0 is 1e-5.
func (t *Tape) GroupNorm(x, weight, bias *Variable, groups int, eps float64) *Variable {
	return t.rows("GroupNorm", x, weight, bias, tensor.NormConfig{Groups: groups, Eps: eps})
}

// RMSNorm returns x over the root mean square of its last dimensions, which shape is, times weight of that shape, which may
// be nil (torch.nn.functional.rms_norm). An eps of 0 is the distance from 1 to the next number of x's dtype.
func (t *Tape) RMSNorm(x, weight *Variable, eps float64, shape ...int) *Variable {
	return t.rows("RMSNorm", x, weight, nil, tensor.NormConfig{Shape: slices.Clone(shape), RMS: true, Eps: eps})
}

func (t *Tape) rows(name string, x, weight, bias *Variable, c tensor.NormConfig) *Variable {
	return t.normalize(name, x, weight, bias, func() (y, stats *tensor.Tensor, err error) {
		return t.rt.Normalize(t.ctx, x.value, weight.Value(), bias.Value(), c)
	}, func(g, w, stats *tensor.Tensor, want tensor.NormGrads) (dx, dw, db *tensor.Tensor, err error) {
		return t.rt.NormalizeGrad(t.ctx, g, x.value, w, stats, c, want)
	})
}

// normalize is an operation that saves statistics, x, and the weights if x needs a gradient.
func (t *Tape) normalize(name string, x, weight, bias *Variable, forward func() (y, stats *tensor.Tensor, err error),
	backward func(g, w, stats *tensor.Tensor, want tensor.NormGrads) (dx, dw, db *tensor.Tensor, err error)) *Variable {
	inputs := []*Variable{x}
	for _, v := range []*Variable{weight, bias} {
		if v != nil {
			inputs = append(inputs, v)
		}
	}
	return t.Func(name, inputs, func(call *Call) (*tensor.Tensor, error) {
		y, stats, err := forward()
		if err != nil {
			return nil, err
		}
		call.Save(stats, x.value)
		if weight != nil && call.NeedsGrad(0) {
			call.Save(weight.value)
		}
		return y, nil
	}, func(call *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		want := tensor.NormGrads{Input: x.needsGrad, Weight: weight != nil && weight.needsGrad, Bias: bias != nil && bias.needsGrad}
		var w *tensor.Tensor
		if want.Input {
			w = weight.Value() // which was saved
		}
		dx, dw, db, err := backward(g, w, call.Saved()[0], want)
		if err != nil {
			return nil, err
		}
		grads := []*tensor.Tensor{dx}
		if weight != nil {
			grads = append(grads, dw)
		}
		if bias != nil {
			grads = append(grads, db)
		}
		return grads, nil
	})
}
