package autograd_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// BenchmarkModel is one training step of small models with AdamW in float32, its data already on
// the device: called, on a tape of its own or on one that is reset, and captured and replayed. The
// host does not wait after a step: the time includes the end of the last one. MiB-at-most is the
// peak of allocated memory, with workspaces, and MiB-reserved the memory that the cache holds at
// the end.
//
//	mlp     784-512-512-10, ReLU; 128 rows, and 1,024
//	cnn     two convolutions of 3 by 3 to 32 and 64 channels, max pooling, dense 128 and 10; 64 pictures of 28 by 28
//	resnet  16 channels, one residual block with batch norm; 64 pictures of 28 by 28
//	gpt     2 layers, 4 heads, width 64; 4 sequences of 32 of 65 characters
//	lstm    128 states, dense 10; 128 pictures of 28 by 28, row by row
func BenchmarkModel(b *testing.B) {
	for _, m := range []struct {
		name  string
		model func(in *nn.Initializer, shape func(string) []int) runModel
		sizes map[string][]int
		input []int
	}{
		{"mlp", newRunMLP, nil, []int{128, 784}},
		{"mlp1024", newRunMLP, nil, []int{1024, 784}},
		{"cnn", newRunCNN, map[string][]int{"0.weight": {32, 1, 3, 3}, "2.weight": {64, 32, 3, 3}, "6.weight": {128, 9216}, "8.weight": {10, 128}}, []int{64, 1, 28, 28}},
		{"resnet", newRunResNet, map[string][]int{"c0.weight": {16, 1, 3, 3}, "c1.weight": {16, 16, 3, 3}, "c2.weight": {16, 16, 3, 3},
			"b0.weight": {16}, "b1.weight": {16}, "b2.weight": {16}, "fc.weight": {10, 16}}, []int{64, 1, 28, 28}},
		{"gpt", newRunGPT, map[string][]int{"tok.weight": {65, 64}, "pos.weight": {32, 64}}, []int{4, 32}},
		{"lstm", newRunRows, nil, []int{128, 28, 28}},
	} {
		for _, how := range []string{"called", "reset", "captured"} {
			b.Run(m.name+"/"+how, func(b *testing.B) {
				bn := tapetest.Open(b, 4<<30)
				in := nn.Init(bn.Ctx, bn.RT, nn.Seed(1))
				model := m.model(in, func(name string) []int { return m.sizes[name] })
				params := nn.ParametersOf(model)
				opt := nn.Own(in, optim.NewAdamW(params, optim.AdamConfig{LR: new(1e-3)}))
				require.NoError(b, in.Err())
				defer func() { require.NoError(b, in.Close()) }()
				benchmarkSteps(b, bn, model, opt, m.input, m.name == "gpt", how)
			})
		}
	}
}

func newRunMLP(in *nn.Initializer, _ func(string) []int) runModel {
	return nn.Sequential{in.Linear(784, 512), nn.ReLU{}, in.Linear(512, 512), nn.ReLU{}, in.Linear(512, 10)}
}

// runRows reads pictures (batch, rows, columns) row by row.
type runRows struct {
	L *nn.LSTM
	O *nn.Linear
}

func newRunRows(in *nn.Initializer, _ func(string) []int) runModel {
	return &runRows{in.LSTM(28, 128), in.Linear(128, 10)}
}

func (m *runRows) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		last := t.Narrow(m.L.Forward(t, t.Transpose(x, 0, 1)), 0, 27, 1)
		return m.O.Forward(t, t.Reshape(last, -1, 128))
	})
}

func benchmarkSteps(b *testing.B, bn *tapetest.Bench, model runModel, opt optim.Optimizer, input []int, tokens bool, how string) {
	n := tapetest.Elements(input)
	var x, y *tensor.Tensor
	if !tokens {
		pictures, labels := make([]float32, n), make([]int32, input[0])
		for i := range pictures {
			pictures[i] = float32(i*31%101) / 100
		}
		for i := range labels {
			labels[i] = int32(i % 10)
		}
		x, y = tapetest.Upload(bn, pictures, input...), tapetest.Upload(bn, labels, len(labels))
	} else {
		tokens := make([]int32, n)
		for i := range tokens {
			tokens[i] = int32(i * 31 % 65)
		}
		x, y = tapetest.Upload(bn, tokens, input...), tapetest.Upload(bn, tokens, n)
	}
	defer func() {
		require.NoError(b, x.Release())
		require.NoError(b, y.Release())
	}()
	kept := autograd.NewTape(bn.Ctx, bn.RT)
	defer func() { require.NoError(b, kept.Close()) }()
	called := func(ctx context.Context) error {
		tape, end := kept, func() error { return kept.Reset(ctx) }
		if how != "reset" {
			tape = autograd.NewTape(ctx, bn.RT)
			end = tape.Close
		}
		logits := model.Forward(tape, tape.Input(x))
		if err := tape.Err(); err != nil {
			return errors.Join(err, end())
		}
		shape := logits.Shape()
		_, err := tape.Backward(tape.CrossEntropy(tape.Reshape(logits, -1, shape[len(shape)-1]), y))
		return errors.Join(err, opt.Step(ctx), opt.ZeroGrad(ctx), end())
	}
	step := called
	for range 3 {
		require.NoError(b, called(bn.Ctx))
	}
	if how == "captured" {
		require.NoError(b, bn.Cache.EmptyCache(bn.Ctx)) // memory of the first steps outside of the graph's pool
		graph, err := bn.RT.Capture(bn.Ctx, called)
		require.NoError(b, err)
		defer func() { require.NoError(b, graph.Close()) }()
		step = graph.Replay
		require.NoError(b, step(bn.Ctx))
	}
	require.NoError(b, bn.RT.Synchronize(bn.Ctx))
	bn.Cache.ResetPeakStats()
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N { // not b.Loop, which does not time what comes after it
		if err := step(bn.Ctx); err != nil {
			b.Fatal(err)
		}
	}
	require.NoError(b, bn.RT.Synchronize(bn.Ctx))
	b.StopTimer()
	b.ReportMetric(float64(bn.Cache.MaxMemoryAllocated())/(1<<20), "MiB-at-most")
	b.ReportMetric(float64(bn.Cache.MemoryReserved())/(1<<20), "MiB-reserved")
}
