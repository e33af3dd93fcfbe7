package autograd

import (
	"github.com/cistern-ml/cistern/tensor"
)

// BatchNorm returns x (n, channels, ...) with each channel normalised, times weight plus bias
// (channels), either of which may be nil; see [tensor.Layers.BatchNorm]. c decides whether it
// trains; the layer nn.BatchNorm takes that from the tape.
func (t *Tape) BatchNorm(x, weight, bias *Variable, c tensor.BatchNormConfig) *Variable {
	var room [3]*Variable
	return opBatchNorm.Apply(t, batchNorm{affine{weight != nil, bias != nil}, c}, withOptional(append(room[:0], x), weight, bias)...)
}

// withOptional appends the optional inputs that are not nil.
func withOptional(inputs []*Variable, optional ...*Variable) []*Variable {
	for _, v := range optional {
		if v != nil {
			inputs = append(inputs, v)
		}
	}
	return inputs
}

// affine records which of weight and bias a normalisation of x has. All normalisations save
// statistics, x, and the weight if x needs a gradient.
type affine struct{ weight, bias bool }

// places returns the input numbers of weight and bias, 3 for an absent one.
func (a affine) places() (weight, bias int) {
	const none = 3
	weight, bias = none, none
	if a.weight {
		weight = 1
	}
	if a.bias {
		bias = 1
		if a.weight {
			bias = 2
		}
	}
	return weight, bias
}

func (a affine) operands(c *Call) (weight, bias *tensor.Tensor) {
	w, b := a.places()
	return c.Input(w), c.Input(b)
}

func (a affine) save(c *Call, y, stats *tensor.Tensor, err error) (*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	c.Save(stats, c.Input(0))
	if w, _ := a.operands(c); w != nil && c.NeedsGrad(0) {
		c.Save(w)
	}
	return y, nil
}

// saved returns the statistics, and the weight if it was saved. An unsaved weight is not needed,
// and may be offloaded.
func (a affine) saved(c *Call) (stats, weight *tensor.Tensor) {
	if c.NeedsGrad(0) {
		weight, _ = a.operands(c)
	}
	return c.Saved()[0], weight
}

func (a affine) wants(c *Call) tensor.NormGrads {
	w, b := a.places()
	return tensor.NormGrads{Input: c.NeedsGrad(0), Weight: c.NeedsGrad(w), Bias: c.NeedsGrad(b)}
}

// give gives the gradients, those of weight and bias before that of x.
func (a affine) give(c *Call, g, dx, dw, db *tensor.Tensor, err error) error {
	c.doneOwn()
	w, b := a.places()
	if dw != nil {
		err = c.Give(w, dw, err)
	}
	if db != nil && err == nil {
		err = c.Give(b, db, nil)
	}
	return c.GiveReplacing(0, g, dx, err)
}

// batchNorm is one use of BatchNorm.
type batchNorm struct {
	affine
	config tensor.BatchNormConfig
}

var opBatchNorm = newOp[batchNorm]("BatchNorm")

func (n *batchNorm) Forward(c *Call) (*tensor.Tensor, error) {
	if c.Recomputing() && n.config.Training { // the running statistics have the batch already
		n.config.Mean, n.config.Var, n.config.Batches = nil, nil, nil
	}
	weight, bias := n.operands(c)
	y, stats, err := c.Runtime().BatchNorm(c.Context(), c.Input(0), weight, bias, n.config)
	return n.save(c, y, stats, err)
}

// Backward gives x, the weight and the bias their gradients.
func (n *batchNorm) Backward(c *Call, g *tensor.Tensor) error {
	stats, weight := n.saved(c)
	dx, dw, db, err := c.Runtime().BatchNormGrad(c.Context(), c.Reuse(g), g, c.Input(0), weight, stats, n.config, n.wants(c))
	return n.give(c, g, dx, dw, db, err)
}

// LayerNorm returns x, normalised over its last dimensions, which have the given shape, times
// weight plus bias of that shape, either of which may be nil (torch.nn.functional.layer_norm). An
// eps of 0 is 1e-5.
func (t *Tape) LayerNorm(x, weight, bias *Variable, eps float64, shape ...int) *Variable {
	return t.rows("LayerNorm", x, weight, bias, tensor.NormConfig{Shape: shape, Eps: eps})
}

// GroupNorm returns x (n, channels, ...), normalised over each of the groups of channels, times
// weight plus bias (channels), either of which may be nil (torch.nn.functional.group_norm). An eps
// of 0 is 1e-5.
func (t *Tape) GroupNorm(x, weight, bias *Variable, groups int, eps float64) *Variable {
	return t.rows("GroupNorm", x, weight, bias, tensor.NormConfig{Groups: groups, Eps: eps})
}

// RMSNorm returns x over the root mean square of its last dimensions, which have the given shape,
// times weight of that shape, which may be nil (torch.nn.functional.rms_norm). An eps of 0 is the
// distance from 1 to the next number of x's dtype.
func (t *Tape) RMSNorm(x, weight *Variable, eps float64, shape ...int) *Variable {
	return t.rows("RMSNorm", x, weight, nil, tensor.NormConfig{Shape: shape, RMS: true, Eps: eps})
}

func (t *Tape) rows(name string, x, weight, bias *Variable, c tensor.NormConfig) *Variable {
	var room [3]*Variable
	n := newRowNorm(weight, bias, c)
	return opRowNorm.applyAs(name, t, &n, withOptional(append(room[:0], x), weight, bias)...)
}

// rowNorm is one use of LayerNorm, GroupNorm or RMSNorm.
type rowNorm struct {
	affine
	config      tensor.NormConfig // without its Shape
	shape       dimensions
	made, stats *tensor.Tensor // set by addRows, which computes the result with the argument
}

var opRowNorm = newOp[rowNorm]("LayerNorm")

func newRowNorm(weight, bias *Variable, c tensor.NormConfig) rowNorm {
	n := rowNorm{affine: affine{weight != nil, bias != nil}, config: c, shape: newDimensions(c.Shape)}
	n.config.Shape = nil
	return n
}

func (n *rowNorm) options() tensor.NormConfig {
	config := n.config
	config.Shape = n.shape.list()
	return config
}

func (n *rowNorm) Forward(c *Call) (*tensor.Tensor, error) {
	if y, stats := n.made, n.stats; y != nil {
		n.made, n.stats = nil, nil
		return n.save(c, y, stats, nil)
	}
	weight, bias := n.operands(c)
	y, stats, err := c.Runtime().Normalize(c.Context(), c.Input(0), weight, bias, n.options())
	return n.save(c, y, stats, err)
}

// Backward gives x, the weight and the bias their gradients.
func (n *rowNorm) Backward(c *Call, g *tensor.Tensor) error {
	stats, weight := n.saved(c)
	wants := n.wants(c)
	wants.Onto = c.onto(0) // such as the gradient of a residual connection around the norm
	dx, dw, db, err := c.Runtime().NormalizeGrad(c.Context(), g, c.Input(0), weight, stats, n.options(), wants)
	return n.give(c, g, dx, dw, db, err)
}
