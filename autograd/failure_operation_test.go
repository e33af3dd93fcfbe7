package autograd_test

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// Shapes of operands.
var (
	matrix  = []int{2, 3}
	vector  = []int{3}
	batch   = []int{2, 2, 3}
	picture = []int{1, 2, 3, 4}
)

// ofOne is a program of an operation of a matrix.
func ofOne(op func(t onTape, x variable) variable) program {
	return operation(func(t onTape, v []variable) variable { return op(t, v[0]) }, matrix)
}

// ofTwo is a program of an operation of two matrices.
func ofTwo(op func(t onTape, a, b variable) variable) program {
	return operation(func(t onTape, v []variable) variable { return op(t, v[0], v[1]) }, matrix, matrix)
}

// overRows is a program of a reduction of a matrix to one row.
func overRows(op func(t onTape, x variable, axes ...int) variable) program {
	return ofOne(func(t onTape, x variable) variable { return op(t, x, 0) })
}

// pooled is a program of an operation of windows.
func pooled(op func(t onTape, x variable, c tensor.PoolingConfig) variable, shape ...int) program {
	return operation(func(t onTape, v []variable) variable {
		return op(t, v[0], tensor.PoolingConfig{Kernel: []int{2}, Stride: []int{1}})
	}, shape)
}

// convolved is a program of a convolution with a bias.
func convolved(op func(t onTape, x, w, bias variable, c tensor.ConvConfig) variable, shapes ...[]int) program {
	return operation(func(t onTape, v []variable) variable { return op(t, v[0], v[1], v[2], tensor.ConvConfig{}) }, shapes...)
}

// lossOf is a program of a loss whose target needs a gradient too, or does not broadcast.
func lossOf(op func(t onTape, x variable, target autograd.Target, options ...tensor.LossOption) variable, target []int) program {
	return operation(func(t onTape, v []variable) variable { return op(t, v[0], v[1]) }, matrix, target)
}

// recurs is a program of a recurrent operation with all operands and results.
func recurs(kind tensor.RecurrentKind, gates int, reverse bool) program {
	n := gates * 2
	return operation(func(t onTape, v []variable) variable {
		r := autograd.Recurrence{Kind: kind, Reverse: reverse, Last: true, X: v[0], WeightIH: v[1], WeightHH: v[2], BiasIH: v[3], BiasHH: v[4], H0: v[5]}
		if kind == tensor.LSTM {
			r.C0 = v[6]
		}
		y, h, c := t.Recurrent(r)
		all := []variable{t.Reshape(y, -1), t.Reshape(h, -1)}
		if kind == tensor.LSTM {
			all = append(all, t.Reshape(c, -1))
		}
		return t.Cat(0, all...)
	}, [][]int{{3, 2, 3}, {n, 3}, {n, 2}, {n}, {n}, {2, 2}, {2, 2}}[:6+gates/4]...)
}

// attends is a program of an attention with this configuration.
func attends(cfg func(t onTape, v []variable) autograd.AttentionConfig, shapes ...[]int) program {
	return operation(func(t onTape, v []variable) variable {
		return t.ScaledDotProductAttention(v[0], v[1], v[2], cfg(t, v))
	}, shapes...)
}

// indexed is a program of an operation of a matrix and the index 1, 0.
func indexed(op func(t onTape, x, index variable) variable) program {
	return operation(func(t onTape, v []variable) variable { return op(t, v[0], v[1]) }, matrix)
}

// operationRows are the operations of tapes.
var operationRows = []struct {
	Of string
	program
}{
	{Of: "Tape.Abs", program: ofOne(onTape.Abs)},
	{Of: "Tape.Cos", program: ofOne(onTape.Cos)},
	{Of: "Tape.Erf", program: ofOne(onTape.Erf)},
	{Of: "Tape.Exp", program: ofOne(onTape.Exp)},
	{Of: "Tape.GELU", program: ofOne(onTape.GELU)},
	{Of: "Tape.GELUTanh", program: ofOne(onTape.GELUTanh)},
	{Of: "Tape.Log", program: ofOne(onTape.Log)},
	{Of: "Tape.LogSigmoid", program: ofOne(onTape.LogSigmoid)},
	{Of: "Tape.Neg", program: ofOne(onTape.Neg)},
	{Of: "Tape.ReLU", program: ofOne(onTape.ReLU)},
	{Of: "Tape.Rsqrt", program: ofOne(onTape.Rsqrt)},
	{Of: "Tape.SiLU", program: ofOne(onTape.SiLU)},
	{Of: "Tape.Sigmoid", program: ofOne(onTape.Sigmoid)},
	{Of: "Tape.Sin", program: ofOne(onTape.Sin)},
	{Of: "Tape.Sqrt", program: ofOne(onTape.Sqrt)},
	{Of: "Tape.Square", program: ofOne(onTape.Square)},
	{Of: "Tape.Tanh", program: ofOne(onTape.Tanh)},
	{Of: "Tape.Sign", program: ofOne(onTape.Sign)},
	{Of: "Tape.Floor", program: ofOne(onTape.Floor)},
	{Of: "Tape.Ceil", program: ofOne(onTape.Ceil)},
	{Of: "Tape.Round", program: ofOne(onTape.Round)},
	{Of: "Tape.Log1p", program: ofOne(onTape.Log1p)},
	{Of: "Tape.Expm1", program: ofOne(onTape.Expm1)},
	{Of: "Tape.Tril", program: ofOne(func(t onTape, x variable) variable { return t.Tril(x, 0) })},
	{Of: "Tape.Triu", program: ofOne(func(t onTape, x variable) variable { return t.Triu(x, 0) })},
	{Of: "Tape.Max", program: ofOne(onTape.Max)},
	{Of: "Tape.Min", program: ofOne(onTape.Min)},
	{Of: "Tape.Apply", program: ofOne(func(t onTape, x variable) variable { return t.Apply(fn.Sin, x) })},
	{Of: "Tape.AddScalar", program: ofOne(func(t onTape, x variable) variable { return t.AddScalar(x, 2) })},
	{Of: "Tape.MulScalar", program: ofOne(func(t onTape, x variable) variable { return t.MulScalar(x, 2) })},
	{Of: "Tape.PowScalar", program: ofOne(func(t onTape, x variable) variable { return t.PowScalar(x, 3) })},
	{Of: "Tape.ELU", program: ofOne(func(t onTape, x variable) variable { return t.ELU(x, 1) })},
	{Of: "Tape.Softplus", program: ofOne(func(t onTape, x variable) variable { return t.Softplus(x, 1, 20) })},
	{Of: "Tape.LeakyReLU", program: ofOne(func(t onTape, x variable) variable { return t.LeakyReLU(x, 0.1) })},
	{Of: "Tape.Hardtanh", program: ofOne(func(t onTape, x variable) variable { return t.Hardtanh(x, -1, 1) })},
	{Of: "Tape.Clamp", program: ofOne(func(t onTape, x variable) variable { return t.Clamp(x, -1, 1) })},
	{Of: "Tape.Dropout", program: ofOne(func(t onTape, x variable) variable { return t.Dropout(x, 0.5) })},
	{Of: "Tape.Uniform", program: ofOne(func(t onTape, x variable) variable {
		return t.Mul(x, t.Uniform(1, 2, x.Value().Dtype(), x.Shape()...))
	})},
	{Of: "Tape.Normal", program: ofOne(func(t onTape, x variable) variable {
		return t.Mul(x, t.Normal(1, 2, x.Value().Dtype(), x.Shape()...))
	})},
	{Of: "Tape.Bernoulli", program: ofOne(func(t onTape, x variable) variable { return t.Mul(x, t.Bernoulli(x)) })},
	{Of: "Tape.Categorical", program: ofOne(func(t onTape, x variable) variable {
		return t.IndexSelect(x, 1, t.Categorical(x, tensor.TopK(2)))
	})},
	{Of: "Tape.RandPerm", program: ofOne(func(t onTape, x variable) variable { return t.IndexSelect(x, 1, t.RandPerm(3)) })},
	{Of: "Tape.Dropout2d", program: ofOne(func(t onTape, x variable) variable { return t.Dropout2d(x, 0.5) })},
	{Of: "Tape.PReLU", program: operation(func(t onTape, v []variable) variable { return t.PReLU(v[0], v[1]) }, matrix, vector)},
	{Of: "Tape.Cast", program: ofOne(func(t onTape, x variable) variable { return t.Cast(t.Cast(x, tensor.Float32), tensor.Float64) })},
	{Of: "Tape.Detach", program: ofOne(func(t onTape, x variable) variable { return t.Mul(t.Detach(x), x) })},

	{Of: "Tape.Add", program: ofTwo(onTape.Add)},
	{Of: "Tape.Add of itself", program: ofOne(func(t onTape, x variable) variable { return t.Add(x, x) })},
	{Of: "Tape.Sub", program: ofTwo(onTape.Sub)},
	{Of: "Tape.Mul", program: ofTwo(onTape.Mul)},
	{Of: "Tape.Mul that broadcasts", program: operation(func(t onTape, v []variable) variable { return t.Mul(v[0], v[1]) }, matrix, vector)},
	{Of: "Tape.Div", program: ofTwo(onTape.Div)},
	{Of: "Tape.Maximum", program: ofTwo(onTape.Maximum)},
	{Of: "Tape.Minimum", program: ofTwo(onTape.Minimum)},
	{Of: "Tape.Where", program: operation(func(t onTape, v []variable) variable { return t.Where(t.Reshape(v[2], 2, 1), v[0], v[1]) }, matrix, matrix)},
	{Of: "Tape.Pow", program: ofTwo(onTape.Pow)},
	{Of: "Tape.Equal", program: ofTwo(func(t onTape, a, b variable) variable { return t.Where(t.Equal(a, b), a, b) })},
	{Of: "Tape.NotEqual", program: ofTwo(func(t onTape, a, b variable) variable { return t.Where(t.NotEqual(a, b), a, b) })},
	{Of: "Tape.Less", program: ofTwo(func(t onTape, a, b variable) variable { return t.Where(t.Less(a, b), a, b) })},
	{Of: "Tape.LessEqual", program: ofTwo(func(t onTape, a, b variable) variable { return t.Where(t.LessEqual(a, b), a, b) })},
	{Of: "Tape.Greater", program: ofTwo(func(t onTape, a, b variable) variable { return t.Where(t.Greater(a, b), a, b) })},
	{Of: "Tape.GreaterEqual", program: ofTwo(func(t onTape, a, b variable) variable { return t.Where(t.GreaterEqual(a, b), a, b) })},
	{Of: "Tape.MaskedFill", program: indexed(func(t onTape, x, i variable) variable { return t.MaskedFill(x, t.Reshape(i, 2, 1), 3) })},
	{Of: "Tape.AddBias", program: operation(func(t onTape, v []variable) variable { return t.AddBias(v[0], v[1]) }, matrix, vector)},

	{Of: "Tape.Sum", program: overRows(onTape.Sum)},
	{Of: "Tape.SumKeepDim", program: overRows(onTape.SumKeepDim)},
	{Of: "Tape.Mean", program: overRows(onTape.Mean)},
	{Of: "Tape.MeanKeepDim", program: overRows(onTape.MeanKeepDim)},
	{Of: "Tape.Amax", program: overRows(onTape.Amax)},
	{Of: "Tape.AmaxKeepDim", program: overRows(onTape.AmaxKeepDim)},
	{Of: "Tape.Amin", program: overRows(onTape.Amin)},
	{Of: "Tape.AminKeepDim", program: overRows(onTape.AminKeepDim)},
	{Of: "Tape.VectorNorm", program: ofOne(func(t onTape, x variable) variable { return t.VectorNorm(x, 2, 0) })},
	{Of: "Tape.VectorNormKeepDim", program: ofOne(func(t onTape, x variable) variable { return t.VectorNormKeepDim(x, 1, 0) })},
	{Of: "Tape.CumSum", program: ofOne(func(t onTape, x variable) variable { return t.CumSum(x, 0) })},
	{Of: "Tape.ArgMax", program: ofOne(func(t onTape, x variable) variable { return t.Gather(x, 0, t.Reshape(t.ArgMax(x, 0), 1, 3)) })},
	{Of: "Tape.ArgMin", program: ofOne(func(t onTape, x variable) variable { return t.Gather(x, 0, t.Reshape(t.ArgMin(x, 0), 1, 3)) })},
	{Of: "Tape.LogSumExp", program: overRows(onTape.LogSumExp)},
	{Of: "Tape.LogSumExpKeepDim", program: overRows(onTape.LogSumExpKeepDim)},
	{Of: "Tape.Softmax", program: overRows(onTape.Softmax)},
	{Of: "Tape.LogSoftmax", program: overRows(onTape.LogSoftmax)},
	{Of: "Tape.Var", program: ofOne(func(t onTape, x variable) variable { return t.Var(x, 1, 0) })},
	{Of: "Tape.VarKeepDim", program: ofOne(func(t onTape, x variable) variable { return t.VarKeepDim(x, 1, 0) })},

	{Of: "Tape.BroadcastTo", program: ofOne(func(t onTape, x variable) variable { return t.BroadcastTo(x, 2, 2, 3) })},
	{Of: "Tape.Reshape", program: ofOne(func(t onTape, x variable) variable { return t.Reshape(x, 3, 2) })},
	{Of: "Tape.Flatten", program: ofOne(func(t onTape, x variable) variable { return t.Flatten(x, 0, -1) })},
	{Of: "Tape.Squeeze", program: ofOne(func(t onTape, x variable) variable { return t.Squeeze(x) })},
	{Of: "Tape.Unsqueeze", program: ofOne(func(t onTape, x variable) variable { return t.Unsqueeze(x, 1) })},
	{Of: "Tape.Transpose", program: ofOne(func(t onTape, x variable) variable { return t.Transpose(x) })},
	{Of: "Tape.Permute", program: ofOne(func(t onTape, x variable) variable { return t.Permute(x, 1, 0) })},
	{Of: "Tape.Narrow", program: ofOne(func(t onTape, x variable) variable { return t.Narrow(x, 1, 1, 2) })},
	{Of: "Tape.Pad", program: ofOne(func(t onTape, x variable) variable { return t.Pad(x, 1, []int{1, 0}, []int{0, 2}) })},
	{Of: "Tape.ReflectionPad", program: ofOne(func(t onTape, x variable) variable { return t.ReflectionPad(x, []int{1, 0}, []int{0, 2}) })},
	{Of: "Tape.ReplicationPad", program: ofOne(func(t onTape, x variable) variable { return t.ReplicationPad(x, []int{1, 0}, []int{0, 2}) })},
	{Of: "Tape.Interpolate", program: operation(func(t onTape, v []variable) variable {
		return t.Interpolate(v[0], tensor.InterpolateConfig{Size: []int{3, 5}, Bilinear: true})
	}, picture)},
	{Of: "Tape.Flip", program: ofOne(func(t onTape, x variable) variable { return t.Flip(x, 1) })},
	{Of: "Tape.Roll", program: ofOne(func(t onTape, x variable) variable { return t.Roll(x, []int{1}, []int{1}) })},
	{Of: "Tape.Sort", program: ofOne(func(t onTape, x variable) variable {
		values, index := t.Sort(x, 1, true)
		return t.Mul(values, t.Gather(x, 1, index))
	})},
	{Of: "Tape.TopK", program: ofOne(func(t onTape, x variable) variable {
		values, index := t.TopK(x, 2, 1, true)
		return t.Mul(values, t.Gather(x, 1, index))
	})},
	{Of: "Tape.Cat", program: ofTwo(func(t onTape, a, b variable) variable { return t.Cat(1, a, b) })},
	{Of: "Tape.Stack", program: ofTwo(func(t onTape, a, b variable) variable { return t.Stack(0, a, b) })},
	{Of: "Tape.Split", program: ofOne(func(t onTape, x variable) variable {
		parts := t.Split(x, 1, 1, 2)
		return t.Mul(parts[0], parts[1])
	})},
	{Of: "Tape.Chunk", program: ofOne(func(t onTape, x variable) variable {
		parts := t.Chunk(x, 0, 2)
		return t.Mul(parts[0], parts[1])
	})},
	{Of: "Tape.IndexSelect", program: indexed(func(t onTape, x, i variable) variable { return t.IndexSelect(x, 1, i) })},
	{Of: "Tape.Gather", program: indexed(func(t onTape, x, i variable) variable { return t.Gather(x, 1, t.Reshape(i, 2, 1)) })},
	{Of: "Tape.Scatter", program: indexed(func(t onTape, x, i variable) variable {
		return t.Scatter(x, 1, t.Reshape(i, 2, 1), t.Narrow(x, 1, 0, 1))
	})},
	{Of: "Tape.ScatterAdd", program: indexed(func(t onTape, x, i variable) variable {
		return t.ScatterAdd(x, 1, t.Reshape(i, 2, 1), t.Narrow(x, 1, 0, 1))
	})},
	{Of: "Tape.OneHot", program: indexed(func(t onTape, x, i variable) variable { return t.Where(t.OneHot(i, 3, tensor.Int32), x, x) })},
	{Of: "Tape.Embedding", program: indexed(func(t onTape, x, i variable) variable { return t.Embedding(i, x, tensor.EmbeddingConfig{}) })},
	{Of: "Tape.Embedding twice", program: indexed(func(t onTape, x, i variable) variable {
		return t.Mul(t.Embedding(i, x, tensor.EmbeddingConfig{}), t.Embedding(i, x, tensor.EmbeddingConfig{}))
	})},

	{Of: "Tape.MatMul", program: ofTwo(func(t onTape, a, b variable) variable { return t.MatMul(a, b, tensor.TransB) })},
	{Of: "Tape.MatMul of a batch", program: operation(func(t onTape, v []variable) variable { return t.MatMul(v[0], v[1]) }, vector, []int{2, 3, 2})},
	{Of: "Tape.BMM", program: operation(func(t onTape, v []variable) variable { return t.BMM(v[0], v[1], tensor.TransB) }, batch, batch)},
	{Of: "Tape.Linear", program: operation(func(t onTape, v []variable) variable {
		return t.Linear(t.Linear(v[0], v[1], v[2]), v[3], nil)
	}, matrix, []int{2, 3}, []int{2}, []int{3, 2})},
	{Of: "Tape.LinearReLU", program: operation(func(t onTape, v []variable) variable {
		return t.Linear(t.LinearReLU(t.LinearReLU(v[0], v[1], v[2]), v[3], v[4]), v[3], nil)
	}, matrix, []int{2, 3}, []int{2}, []int{2, 2}, []int{2})},
	{Of: "Tape.Conv1d", program: convolved(onTape.Conv1d, []int{1, 2, 5}, []int{3, 2, 2}, []int{3})},
	{Of: "Tape.Conv2d", program: convolved(onTape.Conv2d, picture, []int{3, 2, 2, 2}, []int{3})},
	{Of: "Tape.ConvTranspose1d", program: convolved(onTape.ConvTranspose1d, []int{1, 2, 3}, []int{2, 3, 2}, []int{3})},
	{Of: "Tape.ConvTranspose2d", program: convolved(onTape.ConvTranspose2d, picture, []int{2, 3, 2, 2}, []int{3})},
	{Of: "Tape.MaxPool1d", program: pooled(onTape.MaxPool1d, 2, 2, 4)},
	{Of: "Tape.MaxPool2d", program: pooled(onTape.MaxPool2d, picture...)},
	{Of: "Tape.AvgPool1d", program: pooled(onTape.AvgPool1d, 2, 2, 4)},
	{Of: "Tape.AvgPool2d", program: pooled(onTape.AvgPool2d, picture...)},
	{Of: "Tape.AdaptiveAvgPool1d", program: operation(func(t onTape, v []variable) variable { return t.AdaptiveAvgPool1d(v[0], 2) }, batch)},
	{Of: "Tape.AdaptiveAvgPool2d", program: operation(func(t onTape, v []variable) variable { return t.AdaptiveAvgPool2d(v[0], 2, -1) }, picture)},

	{Of: "Tape.BatchNorm", program: operation(func(t onTape, v []variable) variable {
		return t.BatchNorm(v[0], v[1], v[2], tensor.BatchNormConfig{Training: true})
	}, matrix, vector, vector)},
	{Of: "Tape.LayerNorm", program: operation(func(t onTape, v []variable) variable {
		return t.Add(v[0], t.LayerNorm(t.Neg(v[0]), v[1], v[2], 0, 3))
	}, matrix, vector, vector)},
	{Of: "Tape.GroupNorm", program: operation(func(t onTape, v []variable) variable { return t.GroupNorm(v[0], v[1], v[2], 2, 0) }, batch, []int{2}, []int{2})},
	{Of: "Tape.RMSNorm", program: operation(func(t onTape, v []variable) variable { return t.RMSNorm(v[0], v[1], 0, 3) }, matrix, vector)},
	{Of: "Tape.AddLayerNorm", program: operation(func(t onTape, v []variable) variable {
		sum, norm := t.AddLayerNorm(t.Neg(v[0]), v[1], v[2], v[3], 0, 3)
		return t.Mul(sum, norm)
	}, matrix, matrix, vector, vector)},
	{Of: "Tape.AddRMSNorm", program: operation(func(t onTape, v []variable) variable {
		sum, norm := t.AddRMSNorm(t.Neg(v[0]), v[1], v[2], 0, 3)
		return t.Mul(sum, norm)
	}, matrix, matrix, vector)},

	{Of: "Tape.MSELoss", program: lossOf(onTape.MSELoss, matrix)},
	{Of: "Tape.MSELoss that broadcasts", program: lossOf(onTape.MSELoss, vector)},
	{Of: "Tape.L1Loss", program: lossOf(onTape.L1Loss, matrix)},
	{Of: "Tape.HuberLoss", program: ofTwo(func(t onTape, a, b variable) variable { return t.HuberLoss(a, b, 0.5) })},
	{Of: "Tape.BCEWithLogits", program: lossOf(onTape.BCEWithLogits, matrix)},
	{Of: "Tape.BCEWithLogits with weights", program: operation(func(t onTape, v []variable) variable {
		return t.BCEWithLogits(v[0], v[1], tensor.Weight(v[2].Value()))
	}, matrix, matrix, vector)},
	{Of: "Tape.KLDivLoss", program: lossOf(onTape.KLDivLoss, matrix)},
	{Of: "Tape.NLLLoss", program: indexed(func(t onTape, x, i variable) variable { return t.NLLLoss(t.Exp(x), i.Value()) })},
	{Of: "Tape.CrossEntropy", program: indexed(func(t onTape, x, i variable) variable {
		return t.CrossEntropy(t.Exp(x), i.Value(), tensor.LabelSmoothing(0.25))
	})},
	{Of: "Tape.CrossEntropy of each", program: indexed(func(t onTape, x, i variable) variable { return t.CrossEntropy(x, i.Value(), tensor.ReduceNone) })},

	{Of: "Tape.Recurrent RNN", program: recurs(tensor.RNNTanh, 1, false)},
	{Of: "Tape.Recurrent LSTM", program: recurs(tensor.LSTM, 4, true)},
	{Of: "Tape.Recurrent GRU", program: recurs(tensor.GRU, 3, false)},
	{Of: "Tape.ScaledDotProductAttention", program: attends(func(onTape, []variable) autograd.AttentionConfig {
		return autograd.AttentionConfig{Causal: true}
	}, batch, batch, batch)},
	{Of: "Tape.ScaledDotProductAttention with a mask", program: attends(func(_ onTape, v []variable) autograd.AttentionConfig {
		return autograd.AttentionConfig{Mask: v[3]}
	}, batch, batch, batch, []int{2, 2})},
	{Of: "Tape.ScaledDotProductAttention of groups", program: attends(func(onTape, []variable) autograd.AttentionConfig {
		return autograd.AttentionConfig{GQA: true}
	}, []int{4, 2, 3}, batch, batch)},
	{Of: "Tape.ScaledDotProductAttention with dropout and padding", program: attends(func(t onTape, _ []variable) autograd.AttentionConfig {
		t.SetSeed(3)
		return autograd.AttentionConfig{Causal: true, Dropout: 0.25, KeyPadding: autograd.Upload(t, []uint8{0, 1, 0, 0}, 2, 2)}
	}, batch, batch, batch)},
	{Of: "Tape.AttentionWeights", program: operation(func(t onTape, v []variable) variable {
		return t.AttentionWeights(v[0], v[1], autograd.AttentionConfig{Mask: v[2]})
	}, batch, batch, []int{2, 2})},
	{Of: "Tape.SelfAttention with padding", program: operation(func(t onTape, v []variable) variable {
		return t.SelfAttention(v[0], 2, true, autograd.AttentionConfig{KeyPadding: autograd.Upload(t, []uint8{0, 1, 1}, 1, 3)})
	}, []int{1, 3, 12})},
	{Of: "Tape.SelfAttention", program: operation(func(t onTape, v []variable) variable {
		return t.SelfAttention(v[0], 2, true, autograd.AttentionConfig{Causal: true})
	}, []int{1, 3, 12})},

	{Of: "Op.Apply", program: ofOne(func(t onTape, x variable) variable { return opDoubled.Apply(t, doubled{}, x) })},
	{Of: "Tape.Func", program: ofOne(doubledBy)},
	{Of: "Tape.Module Tape.Layer Tape.Frame Variable.Once", program: ofTwo(func(t onTape, a, b variable) variable {
		inner := func() variable { return t.Frame(func() variable { return t.Mul(t.Exp(a), t.Exp(b)) }) }
		return t.ReLU(t.Module("part", func() variable { return t.Layer(nil, "", inner) }).Once())
	})},
	{Of: "Tape.Input Tape.Param Variable.Keep", program: ofOne(func(t onTape, x variable) variable {
		return t.Mul(t.Param(x.Parameter()), t.Input(t.Exp(x).Keep().Value()))
	})},
	{Of: "Tape.Dropped Tape.Rerun Tape.Give", program: ofTwo(func(t onTape, a, b variable) variable {
		return remat.Checkpoint(t, func() variable {
			return t.Dropout(t.Mul(t.Exp(a), remat.Checkpoint(t, func() variable { return t.Sin(b) })), 0.5)
		})
	})},
}
