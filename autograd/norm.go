package autograd

import (
	"github.com/cistern-ml/cistern/tensor"
)

// BatchNorm returns x (n, channels, ...) with each channel normalised, times weight plus bias
// (channels), either of which may be nil; see [tensor.Layers.BatchNorm]. Whether it trains is c's
// to say; the layer [BatchNorm] asks the tape.
func (t *Tape) BatchNorm(x, weight, bias *Variable, c tensor.BatchNormConfig) *Variable {
	var room [3]*Variable
	inputs := withOptional(append(room[:0], x), weight, bias)
	if !t.begin("BatchNorm", inputs...) {
		return t.inert()
	}
	if t.recomputing && c.Training { // the running statistics have the batch already
		c.Mean, c.Var, c.Batches = nil, nil, nil
	}
	n := t.batchNorms.take()
	n.weight, n.bias, n.config = weight, bias, c
	return t.apply("BatchNorm", n, &n.Call, inputs, true)
}

// withOptional are the inputs that an operation must have, and those of the optional ones that are there.
func withOptional(inputs []*Variable, optional ...*Variable) []*Variable {
	for _, v := range optional {
		if v != nil {
			inputs = append(inputs, v)
		}
	}
	return inputs
}

// normalization is what normalisations have in common: they save statistics, x, and the weights if x needs a gradient.
type normalization struct {
	Call
	weight, bias *Variable // or nil
}

func (n *normalization) keep(y, stats *tensor.Tensor, err error) (*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	n.Save(stats, n.Input(0))
	if n.weight != nil && n.NeedsGrad(0) {
		n.Save(n.weight.value)
	}
	return y, nil
}

// savedWeight is the weight if it was saved: else it may be away, and is not needed.
func (n *normalization) savedWeight() *tensor.Tensor {
	if n.weight == nil || !n.NeedsGrad(0) {
		return nil
	}
	return n.weight.value
}

func (n *normalization) wants() tensor.NormGrads {
	return tensor.NormGrads{Input: n.NeedsGrad(0), Weight: n.weight != nil && n.weight.needsGrad, Bias: n.bias != nil && n.bias.needsGrad}
}

func (n *normalization) grads(dx, dw, db *tensor.Tensor, err error) ([]*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	grads := append(n.room.grads[:0], dx)
	if n.weight != nil {
		grads = append(grads, dw)
	}
	if n.bias != nil {
		grads = append(grads, db)
	}
	return grads, nil
}

// batchNorm is one use of BatchNorm.
type batchNorm struct {
	normalization
	config tensor.BatchNormConfig
}

func (n *batchNorm) forward() (*tensor.Tensor, error) {
	t := n.tape
	return n.keep(t.rt.BatchNorm(t.ctx, n.Input(0), n.weight.tensor(), n.bias.tensor(), n.config))
}

func (n *batchNorm) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	t := n.tape
	return n.grads(t.rt.BatchNormGrad(t.ctx, inPlace(g), g, n.Input(0), n.savedWeight(), n.Saved()[0], n.config, n.wants()))
}

func (n *batchNorm) give(s *slab) { s.batchNorms.give(n) }

// LayerNorm returns x, normalised over its last dimensions, which shape is, times weight plus bias of that shape, either of
// which may be nil (torch.nn.functional.layer_norm). An eps of 0 is 1e-5.
func (t *Tape) LayerNorm(x, weight, bias *Variable, eps float64, shape ...int) *Variable {
	return t.rows("LayerNorm", x, weight, bias, tensor.NormConfig{Shape: shape, Eps: eps})
}

// GroupNorm returns x (n, channels, ...), normalised over each of so many groups of channels, times weight plus bias
// (channels), either of which may be nil (torch.nn.functional.group_norm). An eps of 0 is 1e-5.
func (t *Tape) GroupNorm(x, weight, bias *Variable, groups int, eps float64) *Variable {
	return t.rows("GroupNorm", x, weight, bias, tensor.NormConfig{Groups: groups, Eps: eps})
}

// RMSNorm returns x over the root mean square of its last dimensions, which shape is, times weight of that shape, which may
// be nil (torch.nn.functional.rms_norm). An eps of 0 is the distance from 1 to the next number of x's dtype.
func (t *Tape) RMSNorm(x, weight *Variable, eps float64, shape ...int) *Variable {
	return t.rows("RMSNorm", x, weight, nil, tensor.NormConfig{Shape: shape, RMS: true, Eps: eps})
}

func (t *Tape) rows(name string, x, weight, bias *Variable, c tensor.NormConfig) *Variable {
	var room [3]*Variable
	inputs := withOptional(append(room[:0], x), weight, bias)
	if !t.begin(name, inputs...) {
		return t.inert()
	}
	n := t.rowNorms.take()
	n.weight, n.bias, n.config = weight, bias, c
	n.config.Shape = append(n.shape[:0], c.Shape...) // the caller may write its list before Backward
	return t.apply(name, n, &n.Call, inputs, true)
}

// rowNorm is one use of LayerNorm, GroupNorm or RMSNorm.
type rowNorm struct {
	normalization
	config      tensor.NormConfig
	shape       [4]int         // of config, if it is enough
	made, stats *tensor.Tensor // if the result was made with the argument
}

func (n *rowNorm) forward() (*tensor.Tensor, error) {
	if y, stats := n.made, n.stats; y != nil {
		n.made, n.stats = nil, nil
		return n.keep(y, stats, nil)
	}
	t := n.tape
	return n.keep(t.rt.Normalize(t.ctx, n.Input(0), n.weight.tensor(), n.bias.tensor(), n.config))
}

func (n *rowNorm) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	t, x, wants := n.tape, n.inputs[0], n.wants()
	if wants.Input && x.grad != nil && x.param == nil && x.grad.Exclusive() && x.grad.Dtype() == n.Input(0).Dtype() {
		wants.Onto, x.grad = x.grad, nil // as of what goes around the norm, to its result
	}
	return n.grads(t.rt.NormalizeGrad(t.ctx, g, n.Input(0), n.savedWeight(), n.Saved()[0], n.config, wants))
}

func (n *rowNorm) give(s *slab) { s.rowNorms.give(n) }
