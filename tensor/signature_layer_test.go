package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/fn"
)

// layerSignatures are products, attention, elementwise operations and reductions.
func layerSignatures() []signature {
	type tensors = []*Tensor
	const rows = " 0.0 0.1 0.one 0.two 0.less"
	heads := []operand{f32(3, 5, 4), f32(3, 6, 4), f32(3, 6, 7), f32(5, 6)}
	attended := append([]operand{f32(3, 5, 7), f32(3, 5, 7), f64(3, 5, 2)}, heads...)
	return []signature{
		{"Linear", rows, []operand{f32(2, 3, 5), f32(4, 5), f32(4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Linear(ctx, ts[0], ts[1], ts[2]))
		}},
		{"LinearReLU", rows, []operand{f32(2, 3, 5), f32(4, 5), f32(4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.LinearReLU(ctx, ts[0], ts[1], ts[2]))
		}},
		{"LinearWeightGrad", "0.2 1.2", []operand{f32(2, 3, 5), f32(2, 3, 7)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.LinearWeightGrad(ctx, ts[0], ts[1], true))
		}},
		{"LinearWeightGrad of rows", "0.1 1.1", []operand{f32(2, 5), f32(2, 7)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.LinearWeightGrad(ctx, ts[0], ts[1], true))
		}},
		{"LinearInputGrad", "1.1" + rows, []operand{f32(2, 3, 5), f32(5, 7)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			dx, _, err := r.LinearInputGrad(ctx, ts[0], ts[1], nil, 0)
			return one(dx, err)
		}},
		{"LinearInputGrad through ReLU", "2.nil", []operand{f32(2, 3, 5), f32(5, 7), f32(2, 3, 7)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			dx, _, err := r.LinearInputGrad(ctx, ts[0], ts[1], ts[2], 4)
			return one(dx, err)
		}},
		{"MatMul", "0.1 1.2 0.one 0.two 0.less 1.one 1.two 1.less", []operand{f32(3, 2, 4), f32(3, 4, 5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.MatMul(ctx, ts[0], ts[1]))
		}},
		{"MatMul of transposes", "0.1 0.one 0.two 1.0 1.one 1.two", []operand{f32(4, 2), f32(5, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.MatMul(ctx, ts[0], ts[1], TransA, TransB))
		}},
		{"AddBias", rows, []operand{f32(2, 3, 5), f32(5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.AddBias(ctx, ts[0], ts[1]))
		}},
		{"AddBiasInPlace", rows, []operand{f32(2, 3, 5), f32(5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return done(r.AddBiasInPlace(ctx, ts[0], ts[1]))
		}},
		{"ReLUBiasGrad", "", []operand{f32(2, 3), f32(2, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.ReLUBiasGrad(ctx, nil, ts[0], ts[1]))
		}},
		{"ApplyGrad", "0.nil", []operand{f32(2, 3), f32(2, 3), f32(2, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ApplyGrad(ctx, fn.Tanh, ts[0], ts[1], ts[2]))
		}},
		{"MaximumGrad", "0.nil 2.less 3.less", []operand{f32(3, 4), f32(3, 4), f32(3, 4), f32(3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.MaximumGrad(ctx, ts[0], ts[1], ts[2], ts[3]))
		}},
		{"Where", "0.int64 0.uint8 0.one 0.two 0.less 1.one 1.two 1.less 2.one 2.two 2.less 1.nil 2.nil", []operand{i32(3, 4), f32(3, 4), f32(3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Where(ctx, ts[0], ts[1], ts[2]))
		}},
		{"Cat", "0.1 1.1", []operand{f32(3, 4), f32(3, 5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) { return one(r.Cat(ctx, -1, ts...)) }},
		{"Dropout", "0.nil 2.nil 2.one", []operand{f32(2, 3), f32(2, 3), i64()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Dropout(ctx, ts[0], ts[1], 0.5, Random{Live: ts[2]}))
		}},
		{"SoftmaxGrad", "", []operand{f32(2, 3), f32(2, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.SoftmaxGrad(ctx, ts[0], ts[1], 0))
		}},
		{"AmaxGrad", "1.1", []operand{f32(2, 4), f32(2, 3, 4), f32(2, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.AmaxGrad(ctx, ts[0], ts[1], ts[2], 1))
		}},
		{"AmaxGrad of kept dimensions", "1.1", []operand{f32(2, 1, 4), f32(2, 3, 4), f32(2, 1, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.AmaxGrad(ctx, ts[0], ts[1], ts[2], 1))
		}},
		{"VectorNormGrad", "1.1", []operand{f32(2, 4), f32(2, 3, 4), f32(2, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.VectorNormGrad(ctx, ts[0], ts[1], ts[2], 2, 1))
		}},
		{"LogSumExpGrad", "0.one 1.0 2.one", []operand{f32(3), f32(2, 3), f32(3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.LogSumExpGrad(ctx, ts[0], ts[1], ts[2], 0))
		}},
		{"VarGrad", "0.one 1.0", []operand{f32(3), f32(2, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.VarGrad(ctx, ts[0], ts[1], 1, 0))
		}},
		{"ScaledDotProductAttention", "0.less 0.one 0.two 1.less 1.one 1.two 2.2 2.less 2.one 2.two 3.less 3.nil 3.one 3.uint8", heads, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.ScaledDotProductAttention(ctx, ts[0], ts[1], ts[2], ts[3], AttentionConfig{}))
		}},
		{"ScaledDotProductAttentionGrad", "3.less 4.less 5.less 6.less 6.nil 6.one", attended, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			g, err := r.ScaledDotProductAttentionGrad(ctx, ts[0], ts[1], ts[2], ts[3], ts[4], ts[5], ts[6], AttentionConfig{}, ts[6] != nil)
			return three(g.Query, g.Key, g.Value, err)
		}},
		{"SelfAttention", "1.less 1.nil 1.uint8", []operand{f32(5, 3, 36), f32(3, 3, 5, 5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.SelfAttention(ctx, ts[0], ts[1], 3, false, AttentionConfig{}))
		}},
		{"SelfAttentionGrad", "4.less 4.nil 4.uint8", []operand{f32(5, 3, 12), f32(5, 3, 12), f64(3, 3, 5, 2), f32(5, 3, 36), f32(3, 3, 5, 5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.SelfAttentionGrad(ctx, ts[0], ts[1], ts[2], ts[3], ts[4], 3, false, AttentionConfig{}))
		}},
		{"StepAdam", "1.bfloat16", []operand{f32(2, 3), f32(2, 3), f32(2, 3), f32(2, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return done(stepOne(ctx, r.Runtime, Adam{LR: 0.1, Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, Step: 1}, ts[0], ts[1], ts[2:]...))
		}},
	}
}

func lossSignatures() (all []signature) {
	type tensors = []*Tensor
	type loss = func(ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error)
	type grad = func(ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error)
	huber := func(r *rig) loss {
		return func(ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error) {
			return r.HuberLoss(ctx, x, t, 0.5, options...)
		}
	}
	huberGrad := func(r *rig) grad {
		return func(ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error) {
			return r.HuberLossGrad(ctx, of, dloss, x, t, 0.5, options...)
		}
	}
	for name, of := range map[string]struct {
		loss func(r *rig) loss
		grad func(r *rig) grad
	}{
		"MSELoss":       {func(r *rig) loss { return r.MSELoss }, func(r *rig) grad { return r.MSELossGrad }},
		"L1Loss":        {func(r *rig) loss { return r.L1Loss }, func(r *rig) grad { return r.L1LossGrad }},
		"HuberLoss":     {huber, huberGrad},
		"BCEWithLogits": {func(r *rig) loss { return r.BCEWithLogits }, func(r *rig) grad { return r.BCEWithLogitsGrad }},
	} {
		all = append(all,
			signature{name, "", []operand{f32(3, 4), f32(3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
				return one(of.loss(r)(ctx, ts[0], ts[1]))
			}},
			signature{name + "Grad", "0.one", []operand{f32(), f32(3, 4), f32(3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
				return one(of.grad(r)(ctx, OfTarget, ts[0], ts[1], ts[2], ReduceSum))
			}},
			signature{name + "Grad of each", "", []operand{f32(3, 4), f32(3, 4), f32(3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
				return one(of.grad(r)(ctx, OfInput, ts[0], ts[1], ts[2], ReduceNone))
			}})
	}
	smooth := LabelSmoothing(0.1)
	return append(all,
		signature{"BCEWithLogits by weights", "2.less 2.nil 3.less 3.nil 3.one", []operand{f32(3, 4), f32(3, 4), f32(3, 4), f32(4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.BCEWithLogits(ctx, ts[0], ts[1], Weight(ts[2]), PosWeight(ts[3])))
		}},
		signature{"CrossEntropy", "0.bfloat16 1.int64 2.nil", []operand{f32(6, 5, 3), i32(6, 3), f32(5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.CrossEntropy(ctx, ts[0], ts[1], Weight(ts[2]), smooth))
		}},
		signature{"CrossEntropyWithGrad", "0.bfloat16 1.int64 2.nil", []operand{f32(6, 5), i32(6), f32(5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			loss, _, _, err := r.CrossEntropyWithGrad(ctx, ts[0], ts[1], Weight(ts[2]), smooth)
			return one(loss, err)
		}},
		signature{"CrossEntropyWithGrad of each", "0.1 0.bfloat16 0.float64 1.int64", []operand{f32(6, 5), i32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			loss, _, _, err := r.CrossEntropyWithGrad(ctx, ts[0], ts[1], ReduceNone)
			return one(loss, err)
		}},
		signature{"CrossEntropyGrad", "0.nil 2.int64 3.one", []operand{f32(6, 5, 3), f32(6, 5, 3), i32(6, 3), f32()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.CrossEntropyGrad(ctx, ts[0], ts[1], ts[2], ts[3]))
		}},
		signature{"CrossEntropyGrad of each", "0.1 0.bfloat16 1.int64", []operand{f32(6, 5, 3), i32(6, 3), f32(6, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.CrossEntropyGrad(ctx, nil, ts[0], ts[1], ts[2], ReduceNone))
		}})
}

func normSignatures() []signature {
	type tensors = []*Tensor
	layer, group := NormConfig{Shape: []int{6}}, NormConfig{Groups: 3}
	every := NormGrads{Input: true, Weight: true, Bias: true}
	batch := func(training bool) func(ctx context.Context, r *rig, ts tensors) (results, error) {
		return func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.BatchNorm(ctx, ts[0], ts[1], ts[2], BatchNormConfig{Training: training, Mean: ts[3], Var: ts[4], Batches: ts[5]}))
		}
	}
	return []signature{
		{"Normalize", "0.0 0.one 0.two 0.less 1.nil 2.nil", []operand{f32(4, 6), f32(6), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.Normalize(ctx, ts[0], ts[1], ts[2], layer))
		}},
		{"Normalize by groups", "0.0 0.2 1.nil 2.nil", []operand{f32(2, 6, 5), f32(6), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.Normalize(ctx, ts[0], ts[1], ts[2], group))
		}},
		{"AddNormalize", "2.nil 3.nil", []operand{f32(4, 6), f32(4, 6), f32(6), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return three(r.AddNormalize(ctx, ts[0], ts[1], ts[2], ts[3], layer))
		}},
		{"NormalizeGrad", "2.nil", []operand{f32(4, 6), f32(4, 6), f32(6), f64(2, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return three(r.NormalizeGrad(ctx, ts[0], ts[1], ts[2], ts[3], layer, every))
		}},
		{"NormalizeGrad by groups", "2.nil", []operand{f32(2, 6, 5), f32(2, 6, 5), f32(6), f64(2, 6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return three(r.NormalizeGrad(ctx, ts[0], ts[1], ts[2], ts[3], group, every))
		}},
		{"NormalizeGrad onto another", "2.nil 4.nil", []operand{f32(4, 6), f32(4, 6), f32(6), f64(2, 4), f32(4, 6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return three(r.NormalizeGrad(ctx, ts[0], ts[1], ts[2], ts[3], layer, NormGrads{Input: true, Weight: true, Bias: true, Onto: ts[4]}))
		}},
		{"BatchNorm that trains", "0.0 0.2 1.nil 2.nil 5.nil 5.one", []operand{f32(3, 4, 5), f32(4), f32(4), f32(4), f32(4), i64()}, batch(true)},
		{"BatchNorm", "0.0 0.2 1.nil 2.nil 5.nil 5.one", []operand{f32(3, 4, 5), f32(4), f32(4), f32(4), f32(4), i64()}, batch(false)},
		{"BatchNorm of a batch alone", "0.0 0.1 0.2 0.bfloat16 0.float64 0.less 0.one 0.two", []operand{f32(3, 4, 5)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.BatchNorm(ctx, ts[0], nil, nil, BatchNormConfig{Training: true}))
		}},
		{"BatchNormGrad", "0.nil 3.nil", []operand{f32(3, 4, 5), f32(3, 4, 5), f32(3, 4, 5), f32(4), f64(2, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return three(r.BatchNormGrad(ctx, ts[0], ts[1], ts[2], ts[3], ts[4], BatchNormConfig{Training: true}, every))
		}},
	}
}
