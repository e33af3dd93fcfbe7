package tensor

import (
	"context"

	"github.com/stretchr/testify/require"
)

// pictureSignatures are convolutions and poolings, with windows that give each result its own size.
func pictureSignatures() []signature {
	type tensors = []*Tensor
	conv, transposed := ConvConfig{Groups: 2, Padding: []int{1}}, ConvConfig{Groups: 2, Stride: []int{2}}
	pool, average := PoolingConfig{Kernel: []int{3, 2}, Padding: []int{1}}, PoolingConfig{Kernel: []int{3, 2}, ExcludePadding: true, Padding: []int{1}}
	return []signature{
		{"Conv2d", "0.0 0.2 0.3 0.less 1.2 1.3 2.nil", []operand{f32(2, 4, 6, 7), f32(6, 2, 3, 3), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Conv2d(ctx, ts[0], ts[1], ts[2], conv))
		}},
		{"Conv1d", "0.0 0.2 0.less 1.2 2.nil", []operand{f32(2, 4, 7), f32(6, 2, 3), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Conv1d(ctx, ts[0], ts[1], ts[2], conv))
		}},
		{"ConvTranspose2d", "0.0 0.2 0.3 0.less 1.2 1.3 2.nil", []operand{f32(2, 4, 5, 6), f32(4, 3, 3, 3), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ConvTranspose2d(ctx, ts[0], ts[1], ts[2], transposed))
		}},
		{"ConvTranspose1d", "0.0 0.2 0.less 1.2 2.nil", []operand{f32(2, 4, 5), f32(4, 3, 3), f32(6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ConvTranspose1d(ctx, ts[0], ts[1], ts[2], transposed))
		}},
		{"ConvInputGrad", "", []operand{f32(2, 6, 6, 7), f32(6, 2, 3, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ConvInputGrad(ctx, ts[0], ts[1], []int{2, 4, 6, 7}, conv))
		}},
		{"ConvWeightGrad", "", []operand{f32(2, 6, 6, 7), f32(2, 4, 6, 7)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ConvWeightGrad(ctx, ts[0], ts[1], []int{6, 2, 3, 3}, conv))
		}},
		{"ConvTransposeInputGrad", "", []operand{f32(2, 6, 11, 13), f32(4, 3, 3, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ConvTransposeInputGrad(ctx, ts[0], ts[1], []int{2, 4, 5, 6}, transposed))
		}},
		{"ConvTransposeWeightGrad", "", []operand{f32(2, 6, 11, 13), f32(2, 4, 5, 6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ConvTransposeWeightGrad(ctx, ts[0], ts[1], []int{4, 3, 3, 3}, transposed))
		}},
		{"MaxPool2d", "0.0 0.1 0.2 0.3 0.bfloat16 0.float64 0.less", []operand{f32(2, 3, 7, 6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return two(r.MaxPool2d(ctx, ts[0], pool))
		}},
		{"MaxPool2dGrad", "0.bfloat16 0.float64", []operand{f32(2, 3, 3, 4), i32(2, 3, 3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.MaxPool2dGrad(ctx, ts[0], ts[1], []int{2, 3, 7, 6}, pool))
		}},
		{"AvgPool2dGrad", "0.bfloat16 0.float64", []operand{f32(2, 3, 3, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.AvgPool2dGrad(ctx, ts[0], []int{2, 3, 7, 6}, average))
		}},
		{"AdaptiveAvgPool2dGrad", "0.bfloat16 0.float64", []operand{f32(2, 3, 3, 6)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.AdaptiveAvgPool2dGrad(ctx, ts[0], []int{2, 3, 7, 6}, 3, -1))
		}},
	}
}

// chooseSignatures are selections by index.
func chooseSignatures() []signature {
	type tensors = []*Tensor
	return []signature{
		{"IndexSelect", "0.0 0.1 0.bfloat16 0.float64 0.int32 0.int64 0.one 0.two 0.uint8 1.0 1.int64 1.less", []operand{f32(4, 5), i32(3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.IndexSelect(ctx, ts[0], 1, ts[1]))
		}},
		{"IndexSelectGrad", "0.bfloat16 0.float64 1.int64", []operand{f32(4, 3), i32(3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.IndexSelectGrad(ctx, ts[0], 1, ts[1], 4, 5))
		}},
		{"Gather", "0.0+ 0.1 0.bfloat16 0.float64 0.int32 0.int64 0.uint8 1.0- 1.1 1.int64", []operand{f32(4, 5), i32(4, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Gather(ctx, ts[0], 1, ts[1]))
		}},
		{"Gather of a scalar", "0.bfloat16 0.float64 0.int32 0.int64 0.one 0.two 0.uint8 1.int64 1.one 1.two", []operand{f32(), i32()}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Gather(ctx, ts[0], 0, ts[1]))
		}},
		{"GatherGrad", "0.bfloat16 0.float64 1.int64", []operand{f32(4, 3), i32(4, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.GatherGrad(ctx, ts[0], 1, ts[1], 4, 5))
		}},
		{"GatherGrad of a vector", "0.bfloat16 0.float64 1.int64", []operand{f32(3), i32(3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.GatherGrad(ctx, ts[0], 0, ts[1], 5))
		}},
		{"Scatter", "0.0+ 0.1 1.int64", []operand{f32(4, 5), i32(4, 3), f32(4, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Scatter(ctx, ts[0], 1, ts[1], ts[2]))
		}},
		{"ScatterGrad", "0.0+ 0.1 0.bfloat16 0.float64 0.int32 0.int64 0.uint8 1.0- 1.1 1.int64", []operand{f32(4, 5), i32(4, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ScatterGrad(ctx, ts[0], 1, ts[1]))
		}},
		{"ScatterAdd", "0.0+ 0.1 1.int64", []operand{f32(4, 5), i32(4, 3), f32(4, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ScatterAdd(ctx, ts[0], 1, ts[1], ts[2]))
		}},
		{"ScatterAdd to a vector", "0.0 0.less 1.int64", []operand{f32(5), i32(3), f32(3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.ScatterAdd(ctx, ts[0], 0, ts[1], ts[2]))
		}},
		{"SortGrad", "0.bfloat16 0.float64 0.int32 0.int64 0.uint8 1.int64", []operand{f32(4, 3), i32(4, 3)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.SortGrad(ctx, ts[0], 1, ts[1], 4, 5))
		}},
		{"OneHot", "0.0 0.1 0.less 0.one 0.two 0.int64", []operand{i32(3, 2)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.OneHot(ctx, ts[0], 4, Float32))
		}},
		{"Embedding", "0.0 0.1 0.int64 0.less 0.one 0.two 1.0 1.1 1.bfloat16 1.float64 1.int32 1.int64 1.uint8", []operand{i32(3, 2), f32(5, 4)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.Embedding(ctx, ts[0], ts[1], EmbeddingConfig{}))
		}},
		{"EmbeddingGrad", "0.2 0.bfloat16 0.float64 1.int64", []operand{f32(3, 2, 4), i32(3, 2)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return one(r.EmbeddingGrad(ctx, ts[0], ts[1], 5, EmbeddingConfig{}))
		}},
		{"AddEmbeddingGrad", "0.0 2.int64", []operand{f32(5, 4), f32(3, 2, 4), i32(3, 2)}, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			return done(r.AddEmbeddingGrad(ctx, ts[0], ts[1], ts[2], EmbeddingConfig{}))
		}},
	}
}

// recurrentSignatures are passes over 3 steps of 2 sequences, of states of 5.
func recurrentSignatures() (all []signature) {
	type tensors = []*Tensor
	states, state := f32(3, 2, 5), f32(2, 5)
	for kind, gates := range map[RecurrentKind]int{RNNTanh: 1, RNNReLU: 1, LSTM: 4, GRU: 3} {
		inputs, weight, bias := f32(3, 2, gates*5), f32(gates*5, 5), f32(gates*5)
		for _, forGrad := range []bool{false, true} {
			free, operands := "0.0 2.nil 3.nil", []operand{inputs, weight, bias, state}
			if kind == LSTM {
				free, operands = free+" 4.nil", append(operands, state)
			}
			all = append(all, signature{"Recurrent", free, operands, func(ctx context.Context, r *rig, ts tensors) (results, error) {
				w := RecurrentWeights{Weight: ts[1], Bias: ts[2], H0: ts[3]}
				if kind == LSTM {
					w.C0 = ts[4]
				}
				got, err := r.Recurrent(ctx, kind, ts[0], w, forGrad, forGrad)
				if err == nil {
					require.Equal(r.t, [2]bool{kind == LSTM, kind == GRU && forGrad}, [2]bool{got.C != nil, got.New != nil}, "what is kept")
				}
				return results{got.Y, got.Gates}, err
			}})
		}
		free, operands := "3.nil 5.nil", []operand{inputs, weight, states, state, states, state}
		if kind >= LSTM { // its cell states, or its new gates
			operands = append(operands, states)
		}
		if kind == LSTM {
			free, operands = free+" 7.nil 8.nil", append(operands, state, state)
		}
		all = append(all, signature{"RecurrentGrad", free, operands, func(ctx context.Context, r *rig, ts tensors) (results, error) {
			rec, w, dc := Recurrence{Gates: ts[0], Y: ts[2]}, RecurrentWeights{Weight: ts[1], H0: ts[3]}, (*Tensor)(nil)
			if kind == GRU {
				rec.New = ts[6]
			}
			if kind == LSTM {
				rec.C, w.C0, dc = ts[6], ts[7], ts[8]
			}
			g, err := r.RecurrentGrad(ctx, kind, rec, w, ts[4], ts[5], dc, false)
			kept := results{g.Inputs, g.Hidden, g.H0}
			if kind == LSTM {
				kept = append(kept, g.C0)
			}
			return kept, err
		}})
	}
	return all
}
