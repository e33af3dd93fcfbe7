package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestLaunchesOfATransformerStep: a step of BenchmarkModel's transformer has 51 launches on a GPU.
func TestLaunchesOfATransformerStep(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	if _, onHost := b.Dev.(device.HostVisible); onHost {
		t.Skip("the host's launches are of other operations")
	}
	const rows, steps, tokens, width = 4, 32, 65, 64
	launches := map[string]int{}
	rt := b.Counting(launches)
	in := nn.Init(b.Ctx, rt, nn.Seed(3))
	model := newRunGPT(in, func(name string) []int {
		return map[string][]int{"tok.weight": {tokens, width}, "pos.weight": {steps, width}}[name]
	})
	opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{}))
	require.NoError(t, in.Err())
	for range 2 {
		clear(launches)
		tape := autograd.NewTape(b.Ctx, rt)
		x, y := autograd.Upload(tape, make([]int32, rows*steps)), autograd.Upload(tape, make([]int32, rows*steps))
		logits := tape.Reshape(model.Forward(tape, tape.Reshape(x, rows, steps)), rows*steps, tokens)
		optim.Minimize(tape, tape.CrossEntropy(logits, y.Value()), opt)
		require.NoError(t, tape.Close())
	}
	require.NoError(t, rt.Synchronize(b.Ctx))
	sum := 0
	for _, n := range launches {
		sum += n
	}
	require.Equal(t, 51, sum, "%v", launches)
	require.NoError(t, in.Close())
}
