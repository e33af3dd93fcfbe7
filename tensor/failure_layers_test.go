package tensor

import (
	"context"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
)

// op is an operation on operands that exist.
type op func(ctx context.Context) ([]*Tensor, error)

// of is the Make of an operation that makes tensors.
func of(prepare func(m *trialRig) op) func(testing.TB, *trialRig) failtest.Trial {
	return func(_ testing.TB, m *trialRig) failtest.Trial { return m.yields(prepare(m)) }
}

// lossOf is the Make of a loss.
func lossOf(f func(rt *Runtime, ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return of(func(m *trialRig) op {
		x, t := m.in(2, 3), m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(f(m.Runtime, ctx, x, t)) }
	})
}

// lossGradOf is the Make of the gradient of a loss.
func lossGradOf(f func(rt *Runtime, ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return of(func(m *trialRig) op {
		x, t, dloss := m.in(2, 3), m.in(2, 3), m.wide(1)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(f(m.Runtime, ctx, OfInput, dloss, x, t)) }
	})
}

var (
	pooled   = PoolingConfig{Kernel: []int{2}}
	layer    = NormConfig{Shape: []int{3}}
	ofAll    = NormGrads{Input: true, Weight: true, Bias: true}
	embedded = EmbeddingConfig{}
)

// normed returns the operands of a norm's gradient, with statistics of so many rows.
func (m *trialRig) normed(rows int, shape ...int) (dy, x, weight, stats *Tensor) {
	return m.in(shape...), m.in(shape...), m.in(3), m.inOf(Float64, 2, rows)
}

var layerRows = []trialRow{
	{Of: "Layers.MatMul", Make: of(func(m *trialRig) op {
		a, b := m.in(2, 3), m.in(3, 4)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.MatMul(ctx, a, b)) }
	})},
	{Of: "Layers.MatMul on several processors", Make: of(func(m *trialRig) op {
		a, b := m.in(256, 128), m.in(128, 256)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.MatMul(ctx, a, b)) }
	})},
	{Of: "Layers.Linear", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 3), m.in(4, 3), m.in(4)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Linear(ctx, x, w, bias)) }
	})},
	{Of: "Layers.LinearReLU", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 3), m.in(4, 3), m.in(4)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.LinearReLU(ctx, x, w, bias)) }
	})},
	{Of: "Gradients.LinearWeightGrad", Make: of(func(m *trialRig) op {
		dy, x := m.in(2, 4), m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.LinearWeightGrad(ctx, dy, x, true)) }
	})},
	{Of: "Gradients.LinearInputGrad", Make: of(func(m *trialRig) op {
		dy, w, y := m.in(2, 4), m.in(4, 3), m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.LinearInputGrad(ctx, dy, w, y, 5)) }
	})},
	{Of: "Gradients.ReLUBiasGrad", Make: of(func(m *trialRig) op {
		dy, y := m.in(2, 3), m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.ReLUBiasGrad(ctx, nil, dy, y)) }
	})},

	{Of: "Layers.Conv1d", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 2, 5), m.in(3, 2, 3), m.in(3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Conv1d(ctx, x, w, bias, ConvConfig{})) }
	})},
	{Of: "Layers.Conv2d", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 2, 5, 4), m.in(3, 2, 3, 2), m.in(3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Conv2d(ctx, x, w, bias, ConvConfig{})) }
	})},
	{Of: "Layers.ConvTranspose1d", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 2, 5), m.in(2, 3, 3), m.in(3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ConvTranspose1d(ctx, x, w, bias, ConvConfig{}))
		}
	})},
	{Of: "Layers.ConvTranspose2d", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 2, 5, 4), m.in(2, 3, 3, 2), m.in(3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ConvTranspose2d(ctx, x, w, bias, ConvConfig{}))
		}
	})},
	{Of: "Gradients.ConvInputGrad", Make: of(func(m *trialRig) op {
		dy, w := m.in(2, 3, 3), m.in(3, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ConvInputGrad(ctx, dy, w, []int{2, 2, 5}, ConvConfig{}))
		}
	})},
	{Of: "Gradients.ConvWeightGrad", Make: of(func(m *trialRig) op {
		dy, x := m.in(2, 3, 3), m.in(2, 2, 5)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ConvWeightGrad(ctx, dy, x, []int{3, 2, 3}, ConvConfig{}))
		}
	})},
	{Of: "Gradients.ConvTransposeInputGrad", Make: of(func(m *trialRig) op {
		dy, w := m.in(2, 3, 7), m.in(2, 3, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ConvTransposeInputGrad(ctx, dy, w, []int{2, 2, 5}, ConvConfig{}))
		}
	})},
	{Of: "Gradients.ConvTransposeWeightGrad", Make: of(func(m *trialRig) op {
		dy, x := m.in(2, 3, 7), m.in(2, 2, 5)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ConvTransposeWeightGrad(ctx, dy, x, []int{2, 3, 3}, ConvConfig{}))
		}
	})},
	{Of: "Layers.MaxPool2d", Make: of(func(m *trialRig) op {
		x := m.in(2, 4, 4)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.MaxPool2d(ctx, x, pooled)) }
	})},
	{Of: "Gradients.MaxPool2dGrad", Make: of(func(m *trialRig) op {
		dy, indices := m.in(2, 2, 2), m.index(16, 2, 2, 2)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.MaxPool2dGrad(ctx, dy, indices, []int{2, 4, 4}, pooled))
		}
	})},
	{Of: "Layers.AvgPool2d", Make: of(func(m *trialRig) op {
		x := m.in(2, 4, 4)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.AvgPool2d(ctx, x, pooled)) }
	})},
	{Of: "Gradients.AvgPool2dGrad", Make: of(func(m *trialRig) op {
		dy := m.in(2, 2, 2)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.AvgPool2dGrad(ctx, dy, []int{2, 4, 4}, pooled))
		}
	})},
	{Of: "Layers.Interpolate", Make: of(func(m *trialRig) op {
		x := m.in(1, 2, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Interpolate(ctx, x, doubled)) }
	})},
	{Of: "Gradients.InterpolateGrad", Make: of(func(m *trialRig) op {
		dy := m.in(1, 2, 4, 6)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.InterpolateGrad(ctx, dy, []int{1, 2, 2, 3}, doubled))
		}
	})},
	{Of: "Layers.ReflectionPad", Make: edgesOf((*Runtime).ReflectionPad)},
	{Of: "Layers.ReplicationPad", Make: edgesOf((*Runtime).ReplicationPad)},
	{Of: "Gradients.ReflectionPadGrad", Make: edgesGradOf((*Runtime).ReflectionPadGrad)},
	{Of: "Gradients.ReplicationPadGrad", Make: edgesGradOf((*Runtime).ReplicationPadGrad)},
	{Of: "Layers.AdaptiveAvgPool2d", Make: of(func(m *trialRig) op {
		x := m.in(2, 5, 5)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.AdaptiveAvgPool2d(ctx, x, 2)) }
	})},
	{Of: "Gradients.AdaptiveAvgPool2dGrad", Make: of(func(m *trialRig) op {
		dy := m.in(2, 2, 2)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.AdaptiveAvgPool2dGrad(ctx, dy, []int{2, 5, 5}, 2))
		}
	})},

	{Of: "Layers.Normalize", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 3), m.in(3), m.in(3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Normalize(ctx, x, w, bias, layer)) }
	})},
	{Of: "Layers.AddNormalize", Make: of(func(m *trialRig) op {
		x, y, w := m.in(2, 3), m.in(2, 3), m.in(3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.AddNormalize(ctx, x, y, w, nil, layer)) }
	})},
	{Of: "Gradients.NormalizeGrad", Make: of(func(m *trialRig) op {
		dy, x, w, stats := m.normed(2, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.NormalizeGrad(ctx, dy, x, w, stats, layer, ofAll))
		}
	})},
	{Of: "Gradients.NormalizeGrad onto another", Make: of(func(m *trialRig) op {
		dy, x, w, stats := m.normed(2, 2, 3)
		want := NormGrads{Input: true, Weight: true, Onto: m.in(2, 3)}
		return func(ctx context.Context) ([]*Tensor, error) {
			_, dw, _, err := m.NormalizeGrad(ctx, dy, x, w, stats, layer, want)
			return pack(dw, err)
		}
	})},
	{Of: "Layers.BatchNorm", Make: of(func(m *trialRig) op {
		x, w, bias := m.in(2, 3, 2), m.in(3), m.in(3)
		cfg := BatchNormConfig{Mean: m.wide(3), Var: m.wide(3)}
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.BatchNorm(ctx, x, w, bias, cfg)) }
	})},
	{Of: "Gradients.BatchNormGrad", Make: of(func(m *trialRig) op {
		dy, x, w, stats := m.normed(3, 2, 3, 2)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.BatchNormGrad(ctx, nil, dy, x, w, stats, BatchNormConfig{Training: true}, ofAll))
		}
	})},

	{Of: "Layers.MSELoss", Make: lossOf((*Runtime).MSELoss)},
	{Of: "Layers.L1Loss", Make: lossOf((*Runtime).L1Loss)},
	{Of: "Layers.HuberLoss", Make: lossOf(func(rt *Runtime, ctx context.Context, x, t *Tensor, options ...LossOption) (*Tensor, error) {
		return rt.HuberLoss(ctx, x, t, 0.5, options...)
	})},
	{Of: "Layers.BCEWithLogits", Make: of(func(m *trialRig) op {
		x, t, w, pos := m.in(2, 3), m.in(2, 3), m.in(3), m.in(2, 1)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.BCEWithLogits(ctx, x, t, Weight(w), PosWeight(pos)))
		}
	})},
	{Of: "Gradients.MSELossGrad", Make: lossGradOf((*Runtime).MSELossGrad)},
	{Of: "Gradients.L1LossGrad", Make: lossGradOf((*Runtime).L1LossGrad)},
	{Of: "Gradients.HuberLossGrad", Make: lossGradOf(func(rt *Runtime, ctx context.Context, of LossTarget, dloss, x, t *Tensor, options ...LossOption) (*Tensor, error) {
		return rt.HuberLossGrad(ctx, of, dloss, x, t, 0.5, options...)
	})},
	{Of: "Gradients.BCEWithLogitsGrad", Make: lossGradOf((*Runtime).BCEWithLogitsGrad)},
	{Of: "Layers.KLDivLoss", Make: lossOf((*Runtime).KLDivLoss)},
	{Of: "Gradients.KLDivLossGrad", Make: lossGradOf((*Runtime).KLDivLossGrad)},
	{Of: "Layers.NLLLoss", Make: of(func(m *trialRig) op {
		x, labels, w := m.in(2, 3), m.index(3, 2), m.wide(3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.NLLLoss(ctx, x, labels, Weight(w))) }
	})},
	{Of: "Gradients.NLLLossGrad", Make: of(func(m *trialRig) op {
		x, labels, dloss := m.in(2, 3), m.index(3, 2), m.wide(1)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.NLLLossGrad(ctx, x, labels, dloss)) }
	})},
	{Of: "Layers.CrossEntropy", Make: of(func(m *trialRig) op {
		x, labels, w := m.in(2, 3), m.index(3, 2), m.wide(3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.CrossEntropy(ctx, x, labels, Weight(w))) }
	})},
	{Of: "Gradients.CrossEntropyWithGrad", Make: of(func(m *trialRig) op {
		x, labels := m.in(2, 3), m.index(3, 2)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.CrossEntropyWithGrad(ctx, x, labels)) }
	})},
	{Of: "Gradients.CrossEntropyGrad", Make: of(func(m *trialRig) op {
		x, labels, dloss := m.in(2, 3), m.index(3, 2), m.wide(1)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.CrossEntropyGrad(ctx, nil, x, labels, dloss))
		}
	})},
	{Of: "Gradients.CrossEntropyGrad in place", Make: of(func(m *trialRig) op {
		x, labels, dloss := m.in(2, 3), m.index(3, 2), m.wide(1)
		return func(ctx context.Context) ([]*Tensor, error) {
			_, err := m.CrossEntropyGrad(ctx, x, x, labels, dloss)
			return nil, err
		}
	})},

	{Of: "Layers.IndexSelect", Make: of(func(m *trialRig) op {
		x, index := m.in(4, 3), m.index(4, 5)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.IndexSelect(ctx, x, 0, index)) }
	})},
	{Of: "Gradients.IndexSelectGrad", Make: of(func(m *trialRig) op {
		dy, index := m.in(5, 3), m.index(4, 5)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.IndexSelectGrad(ctx, dy, 0, index, 4, 3)) }
	})},
	{Of: "Layers.Gather", Make: of(func(m *trialRig) op {
		x, index := m.in(4, 3), m.index(4, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Gather(ctx, x, 0, index)) }
	})},
	{Of: "Gradients.GatherGrad", Make: of(func(m *trialRig) op {
		dy, index := m.in(2, 3), m.index(4, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.GatherGrad(ctx, dy, 0, index, 4, 3)) }
	})},
	{Of: "Layers.Scatter", Make: of(func(m *trialRig) op {
		x, index, src := m.in(4, 3), m.index(4, 2, 3), m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Scatter(ctx, x, 0, index, src)) }
	})},
	{Of: "Layers.ScatterAdd", Make: of(func(m *trialRig) op {
		x, index, src := m.in(4, 3), m.index(4, 2, 3), m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.ScatterAdd(ctx, x, 0, index, src)) }
	})},
	{Of: "Layers.ScatterAdd to a vector", Make: of(func(m *trialRig) op {
		x, index, src := m.in(4), m.index(4, 5), m.in(5)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.ScatterAdd(ctx, x, 0, index, src)) }
	})},
	{Of: "Gradients.ScatterGrad", Make: of(func(m *trialRig) op {
		dy, index := m.in(4, 3), m.index(4, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.ScatterGrad(ctx, dy, 0, index)) }
	})},
	{Of: "Layers.OneHot", Make: of(func(m *trialRig) op {
		labels := m.index(4, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.OneHot(ctx, labels, 4, Float32)) }
	})},
	{Of: "Layers.Sort", Make: of(func(m *trialRig) op {
		x := m.in(4, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			values, index, err := m.Sort(ctx, x, 1, true)
			return present(nil, values, index), err
		}
	})},
	{Of: "Layers.TopK", Make: of(func(m *trialRig) op {
		x := m.in(4, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			values, index, err := m.TopK(ctx, x, 2, 1, true)
			return present(nil, values, index), err
		}
	})},
	{Of: "Gradients.SortGrad", Make: of(func(m *trialRig) op {
		dy, index := m.in(2, 3), m.index(4, 2, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.SortGrad(ctx, dy, 0, index, 4, 3)) }
	})},
	{Of: "Layers.Embedding", Make: of(func(m *trialRig) op {
		index, w := m.index(4, 2, 2), m.in(4, 3)
		return func(ctx context.Context) ([]*Tensor, error) { return pack(m.Embedding(ctx, index, w, embedded)) }
	})},
	{Of: "Gradients.EmbeddingGrad", Make: of(func(m *trialRig) op {
		dy, index := m.in(5, 3), m.index(4, 5)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.EmbeddingGrad(ctx, dy, index, 4, embedded))
		}
	})},
	{Of: "Gradients.AddEmbeddingGrad", Make: of(func(m *trialRig) op {
		dst, dy, index := m.in(4, 3), m.in(5, 3), m.index(4, 5)
		return func(ctx context.Context) ([]*Tensor, error) {
			return nil, m.AddEmbeddingGrad(ctx, dst, dy, index, embedded)
		}
	})},

	{Of: "Layers.ScaledDotProductAttention", Make: of(func(m *trialRig) op {
		q, k, v, mask := m.in(2, 3, 4), m.in(2, 5, 4), m.in(2, 5, 3), m.in(3, 5)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.ScaledDotProductAttention(ctx, q, k, v, mask, AttentionConfig{}))
		}
	})},
	{Of: "Gradients.ScaledDotProductAttentionGrad", Make: of(func(m *trialRig) op {
		q, k, v, mask := m.in(2, 3, 4), m.in(2, 5, 4), m.in(2, 5, 3), m.in(3, 5)
		dy, y, sums := m.in(2, 3, 3), m.in(2, 3, 3), m.inOf(Float64, 2, 3, 2)
		return func(ctx context.Context) ([]*Tensor, error) {
			g, err := m.ScaledDotProductAttentionGrad(ctx, dy, y, sums, q, k, v, mask, AttentionConfig{}, true)
			return pack(g.Query, g.Key, g.Value, g.Mask, err)
		}
	})},
	{Of: "Layers.SelfAttention", Make: of(func(m *trialRig) op {
		qkv := m.in(3, 2, 12)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.SelfAttention(ctx, qkv, nil, 2, false, AttentionConfig{Causal: true}))
		}
	})},
	{Of: "Gradients.SelfAttentionGrad", Make: of(func(m *trialRig) op {
		qkv, dy, y, sums := m.in(3, 2, 12), m.in(3, 2, 4), m.in(3, 2, 4), m.inOf(Float64, 2, 2, 3, 2)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(m.SelfAttentionGrad(ctx, dy, y, sums, qkv, nil, 2, false, AttentionConfig{}))
		}
	})},
}

var doubled = InterpolateConfig{ScaleFactor: []float64{2}, Bilinear: true}

func edgesOf(pad func(rt *Runtime, ctx context.Context, x *Tensor, before, after []int) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return of(func(m *trialRig) op {
		x := m.in(2, 3)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(pad(m.Runtime, ctx, x, []int{0, 1}, []int{1, 2}))
		}
	})
}

func edgesGradOf(grad func(rt *Runtime, ctx context.Context, dy *Tensor, shape, before, after []int) (*Tensor, error)) func(testing.TB, *trialRig) failtest.Trial {
	return of(func(m *trialRig) op {
		dy := m.in(3, 6)
		return func(ctx context.Context) ([]*Tensor, error) {
			return pack(grad(m.Runtime, ctx, dy, []int{2, 3}, []int{0, 1}, []int{1, 2}))
		}
	})
}
