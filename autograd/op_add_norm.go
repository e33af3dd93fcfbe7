package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// AddLayerNorm returns x + y and [Tape.LayerNorm] of the sum, as between the halves of a
// transformer's block. On a GPU it is one launch if x and y have the same shape. Values and
// gradients are bit-identical to those of Add and LayerNorm. The norm does not count as a reader of
// the sum, on tapes of [NoGrad] and for [Variable.Once].
func (t *Tape) AddLayerNorm(x, y, weight, bias *Variable, eps float64, shape ...int) (sum, norm *Variable) {
	return t.addRows("AddLayerNorm", "LayerNorm", x, y, weight, bias, tensor.NormConfig{Shape: shape, Eps: eps})
}

// AddRMSNorm is [Tape.AddLayerNorm] with [Tape.RMSNorm].
func (t *Tape) AddRMSNorm(x, y, weight *Variable, eps float64, shape ...int) (sum, norm *Variable) {
	return t.addRows("AddRMSNorm", "RMSNorm", x, y, weight, nil, tensor.NormConfig{Shape: shape, RMS: true, Eps: eps})
}

func (t *Tape) addRows(name, norm string, x, y, weight, bias *Variable, c tensor.NormConfig) (sum, out *Variable) {
	var room [4]*Variable
	inputs := withOptional(append(room[:0], x, y), weight, bias)
	if !t.begin(name, inputs...) {
		return t.inert(), t.inert()
	}
	n := newRowNorm(weight, bias, c)
	if !x.value.SameShape(y.value) || x.value.Dtype() != y.value.Dtype() || slices.Contains(inputs[2:], x) || slices.Contains(inputs[2:], y) {
		sum = t.Add(x, y)
	} else {
		t.donate(x)
		t.donate(y)
		value, made, stats, err := t.rt.AddNormalize(t.ctx, x.value, y.value, weight.Tensor(), bias.Tensor(), c)
		n.made, n.stats = made, stats
		sum = opAdded.applyAs(name, t, &added{value, err}, x, y)
	}
	if sum.value == nil {
		return sum, t.inert()
	}
	last := sum.last
	sum.last = 0 // the norm is not the last reader
	inputs[1] = sum
	out = opRowNorm.applyAs(norm, t, &n, inputs[1:]...)
	sum.last = last
	return sum, out
}

// added is an addition whose sum was computed together with its norm.
type added struct {
	sum *tensor.Tensor
	err error
}

var opAdded = newOp[added]("Add")

func (a *added) Forward(*Call) (sum *tensor.Tensor, err error) {
	sum, err = a.sum, a.err
	*a = added{}
	return sum, err
}

// Backward is Add's.
func (*added) Backward(c *Call, g *tensor.Tensor) error { return (*add)(nil).Backward(c, g) }
