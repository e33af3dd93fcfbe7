package autograd_test

import (
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// BenchmarkFirstStep is the first training step of a process, of BenchmarkModel's gpt, as
// BenchmarkFirstStep of examples/mnist measures other models: run it alone, with -benchtime 1x.
func BenchmarkFirstStep(b *testing.B) {
	began := time.Now()
	report := func(unit string) {
		b.ReportMetric(float64(time.Since(began).Microseconds())/1e3, unit)
		began = time.Now()
	}
	bn := tapetest.Open(b, 4<<30)
	in := nn.Init(bn.Ctx, bn.RT, nn.Seed(1))
	sizes := map[string][]int{"tok.weight": {65, 64}, "pos.weight": {32, 64}}
	model := newRunGPT(in, func(name string) []int { return sizes[name] })
	opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{LR: new(1e-3)}))
	require.NoError(b, in.Err())
	tokens := make([]int32, 4*32)
	for i := range tokens {
		tokens[i] = int32(i * 31 % 65)
	}
	x, y := tapetest.Upload(bn, tokens, 4, 32), tapetest.Upload(bn, tokens, len(tokens))
	require.NoError(b, errors.Join(opt.Prepare(bn.Ctx), bn.RT.Synchronize(bn.Ctx)))
	report("ms-open")
	for _, unit := range []string{"ms-first", "ms-second"} {
		tape := autograd.NewTape(bn.Ctx, bn.RT)
		logits := tape.Reshape(model.Forward(tape, tape.Input(x)), -1, 65)
		_, err := tape.Backward(tape.CrossEntropy(logits, y))
		require.NoError(b, errors.Join(err, opt.Step(bn.Ctx), opt.ZeroGrad(bn.Ctx), tape.Close(), bn.RT.Synchronize(bn.Ctx)))
		report(unit)
	}
	require.NoError(b, errors.Join(x.Release(), y.Release(), in.Close()))
}
