package autograd_test

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// infer is the model's result on a tape of NoGrad.
func (b *bench) infer(model autograd.Forwarder, x *tensor.Tensor, half bool) []float32 {
	b.t.Helper()
	tape := autograd.NoGrad(b.ctx, b.rt)
	if half {
		tape.SetComputeDtype(tensor.BFloat16)
	}
	y := tape.Cast(model.Forward(tape, tape.Input(x)), tensor.Float32).Keep()
	require.NoError(b.t, tape.Err())
	got := read[float32](b, y.Value())
	require.NoError(b.t, tape.Close())
	return got
}
