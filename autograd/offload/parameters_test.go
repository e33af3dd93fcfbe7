package offload_test

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// infer returns the model's result on a tape of NoGrad.
func infer(b *tapetest.Bench, model nn.Forwarder, x *tensor.Tensor, half bool) []float32 {
	b.T.Helper()
	tape := autograd.NoGrad(b.Ctx, b.RT)
	if half {
		tape.SetComputeDtype(tensor.BFloat16)
	}
	y := tape.Cast(model.Forward(tape, tape.Input(x)), tensor.Float32).Keep()
	require.NoError(b.T, tape.Err())
	got := tapetest.Read[float32](b, y.Value())
	require.NoError(b.T, tape.Close())
	return got
}
