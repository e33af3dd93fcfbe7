package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// AddLayerNorm returns x + y and [Tape.LayerNorm] of it, which is what stands between the halves of a transformer's blocks: on a GPU one launch where x and y
// have one shape. Values and gradients are those of Add and LayerNorm, to the bit. The norm does not count as a reader of the sum, on tapes of [NoGrad] and
// for [Variable.Once].
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
	if !x.value.SameShape(y.value) || x.value.Dtype() != y.value.Dtype() || slices.Contains(inputs[2:], x) || slices.Contains(inputs[2:], y) {
		sum = t.Add(x, y)
		defer sum.spare()()
		return sum, t.rows(norm, sum, weight, bias, c)
	}
	t.donate(x)
	t.donate(y)
	n := t.rowNorms.take()
	n.weight, n.bias, n.config = weight, bias, c
	n.config.Shape = append(n.shape[:0], c.Shape...)
	value, made, stats, err := t.rt.AddNormalize(t.ctx, x.value, y.value, weight.tensor(), bias.tensor(), n.config)
	n.made, n.stats = made, stats
	sum = t.result(name, value, err)
	t.push("Add", sum, inputs[:2], nil, addBackward)
	if err != nil {
		n.give(t.slab)
		return sum, t.inert()
	}
	defer sum.spare()()
	inputs[1] = sum
	return sum, t.apply(norm, n, &n.Call, inputs[1:], true)
}
