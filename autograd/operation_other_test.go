package autograd_test

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// otherFunctions are norms, losses, attention, choices, and operations on shapes.
func otherFunctions(b *tapetest.Bench) (all []function) {
	type vars = []*autograd.Variable
	add := func(name string, f func(t *autograd.Tape, v vars) *autograd.Variable, shapes ...[]int) {
		all = append(all, function{name, shapes, f})
	}
	of := func(name string, f func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable, shape ...int) {
		add(name, func(t *autograd.Tape, v vars) *autograd.Variable { return f(t, v[0]) }, shape)
	}
	norm, weight := []int{4, 3}, []int{3}
	sums := func(name string, f func(t *autograd.Tape, x, y, w, bias *autograd.Variable) (sum, norm *autograd.Variable)) {
		add(name, func(t *autograd.Tape, v vars) *autograd.Variable {
			sum, norm := f(t, v[0], v[1], v[2], v[3])
			return t.Mul(sum, norm)
		}, norm, norm, weight, weight)
	}
	of("LayerNorm of rows alone", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.LayerNorm(x, nil, nil, 0.1, 3)
	}, 4, 3)
	add("LayerNorm without a weight", func(t *autograd.Tape, v vars) *autograd.Variable { return t.LayerNorm(v[0], nil, v[1], 0.1, 3) }, norm, weight)
	sums("AddLayerNorm", func(t *autograd.Tape, x, y, w, bias *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
		return t.AddLayerNorm(x, y, w, bias, 0.1, 3)
	})
	sums("AddRMSNorm", func(t *autograd.Tape, x, y, w, bias *autograd.Variable) (*autograd.Variable, *autograd.Variable) {
		sum, norm := t.AddRMSNorm(x, y, w, 0.1, 3)
		return sum, t.Add(norm, bias)
	})

	for name, loss := range map[string]func(t *autograd.Tape, x *autograd.Variable, y autograd.Target, options ...tensor.LossOption) *autograd.Variable{
		"MSELoss": (*autograd.Tape).MSELoss, "L1Loss": (*autograd.Tape).L1Loss,
		"HuberLoss": func(t *autograd.Tape, x *autograd.Variable, y autograd.Target, options ...tensor.LossOption) *autograd.Variable {
			return t.HuberLoss(x, y, 0.4, options...)
		},
	} {
		for _, shapes := range [][2][]int{{{4, 3}, {4, 3}}, {{2, 1, 3}, {4, 3}}, {{4, 1}, {2, 1, 3}}, {{3}, {2, 4, 1}}, {{2, 3, 1}, {1, 3, 4}}, {{1}, {3, 2}}} {
			add(name, func(t *autograd.Tape, v vars) *autograd.Variable { return loss(t, v[0], v[1]) }, shapes[0], shapes[1])
			add(name+" of each", func(t *autograd.Tape, v vars) *autograd.Variable { return loss(t, v[0], v[1], tensor.ReduceNone) }, shapes[0], shapes[1])
		}
	}
	add("BCEWithLogits", func(t *autograd.Tape, v vars) *autograd.Variable {
		return t.BCEWithLogits(v[0], v[1], tensor.ReduceSum)
	}, norm, norm)
	labels, soft := tapetest.Upload(b, []int32{2, 0, -100, 1}), tapetest.Upload(b, []float64{1, 0, 0, 0.2, 0.5, 0.3, 0, 0, 1, 0.5, 0.5, 0}, 4, 3)
	weights := tapetest.Upload(b, []float64{1, 2, 0.5})
	of("CrossEntropy", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.CrossEntropy(x, labels) }, 4, 3)
	of("CrossEntropy by weights", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.CrossEntropy(x, labels, tensor.Weight(weights), tensor.LabelSmoothing(0.2), tensor.ReduceNone)
	}, 4, 3)
	of("CrossEntropy of probabilities", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.CrossEntropy(x, soft) }, 4, 3)

	mask := tapetest.Upload(b, []uint8{1, 0, 1, 1, 0, 1, 1, 0, 0, 1, 1, 0}, 4, 3)
	rows, places := tapetest.Upload(b, []int32{2, 0, 2}), tapetest.Upload(b, []int64{1, 0, 2, 2, 1, 1, 0, 0}, 4, 2)
	apart := tapetest.Upload(b, []int32{1, 0, 2, 1, 0, 1, 2, 0}, 4, 2)
	add("Where", func(t *autograd.Tape, v vars) *autograd.Variable { return t.Where(t.Input(mask), v[0], v[1]) }, norm, weight)
	add("Maximum", func(t *autograd.Tape, v vars) *autograd.Variable { return t.Maximum(v[0], v[1]) }, norm, weight)
	add("Minimum", func(t *autograd.Tape, v vars) *autograd.Variable { return t.Minimum(v[0], v[1]) }, []int{4, 1}, weight)
	of("IndexSelect", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.IndexSelect(x, -1, t.Input(rows))
	}, 4, 3)
	of("Gather", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.Gather(x, 1, t.Input(places))
	}, 4, 3)
	add("Scatter", func(t *autograd.Tape, v vars) *autograd.Variable { return t.Scatter(v[0], 1, t.Input(apart), v[1]) }, []int{4, 3}, []int{4, 2})
	add("ScatterAdd", func(t *autograd.Tape, v vars) *autograd.Variable { return t.ScatterAdd(v[0], 1, t.Input(places), v[1]) }, []int{4, 3}, []int{4, 2})
	of("Sort", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		values, _ := t.Sort(x, 0, false)
		return values
	}, 4, 3)
	of("TopK", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		values, _ := t.TopK(x, 2, -1, true)
		return values
	}, 4, 3)
	of("CumSum", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.CumSum(x, 1) }, 2, 4)
	of("Flip", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Flip(x, 0, 2) }, 2, 3, 2)
	of("Roll", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.Roll(x, []int{1, -2}, []int{0, 2})
	}, 2, 3, 4)
	of("Amin", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Amin(x, 1) }, 3, 4)
	of("VectorNorm", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.VectorNorm(x, 2, 1) }, 3, 4)
	of("Embedding", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.Embedding(t.Input(places), x, tensor.EmbeddingConfig{})
	}, 4, 3)

	attend := func(name string, cfg autograd.AttentionConfig, shapes ...[]int) {
		add(name, func(t *autograd.Tape, v vars) *autograd.Variable {
			cfg := cfg
			if len(v) > 3 {
				cfg.Mask = v[3]
			}
			return t.ScaledDotProductAttention(v[0], v[1], v[2], cfg)
		}, shapes...)
	}
	attend("attention", autograd.AttentionConfig{}, []int{2, 3, 4}, []int{2, 5, 4}, []int{2, 5, 3})
	attend("attention with a mask", autograd.AttentionConfig{}, []int{2, 3, 4}, []int{2, 5, 4}, []int{2, 5, 3}, []int{3, 5})
	attend("attention of shared heads", autograd.AttentionConfig{GQA: true, Causal: true}, []int{4, 3, 2}, []int{2, 3, 2}, []int{2, 3, 3})
	attend("attention of one shared head", autograd.AttentionConfig{GQA: true}, []int{2, 3, 3, 2}, []int{2, 1, 4, 2}, []int{2, 1, 4, 3})
	of("SelfAttention", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		return t.SelfAttention(x, 2, false, autograd.AttentionConfig{})
	}, 3, 2, 12)

	add("BMM", func(t *autograd.Tape, v vars) *autograd.Variable { return t.BMM(v[0], v[1], tensor.TransB) }, []int{2, 3, 4}, []int{2, 5, 4})
	add("MatMul of batches", func(t *autograd.Tape, v vars) *autograd.Variable { return t.MatMul(v[0], v[1], tensor.TransA) }, []int{2, 1, 4, 3}, []int{3, 4, 2})
	add("MatMul of a vector", func(t *autograd.Tape, v vars) *autograd.Variable { return t.MatMul(v[0], v[1]) }, []int{4}, []int{2, 4, 3})
	add("MatMul by a vector", func(t *autograd.Tape, v vars) *autograd.Variable { return t.MatMul(v[0], v[1]) }, []int{2, 3, 4}, []int{4})
	add("Cat", func(t *autograd.Tape, v vars) *autograd.Variable { return t.Cat(-1, v...) }, []int{2, 3}, []int{2, 1}, []int{2, 2})
	of("Squeeze", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Squeeze(x, 0, -2) }, 1, 3, 1, 2)
	of("Squeeze of all", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Squeeze(x) }, 1, 3, 1, 2)
	of("Flatten", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Flatten(x, 1, -1) }, 2, 3, 2)
	of("Narrow", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Narrow(x, 1, 1, 2) }, 2, 4)
	of("Permute", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Permute(x, 2, 0, 1) }, 2, 3, 4)
	of("Split", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		parts := t.Split(x, 0, 1, 2)
		return t.Mul(parts[0], parts[1])
	}, 3, 2)
	of("Amax", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Amax(x, 1) }, 3, 4)
	of("Var", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.VarKeepDim(x, 1, 1) }, 3, 4)
	of("LogSumExp", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.LogSumExp(x, 0) }, 3, 4)
	of("LogSoftmax", func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.LogSoftmax(x, 0) }, 3, 4)
	return all
}
