package offload_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestResetOffloadsParameters: after a forward pass without a backward pass, Reset moves the
// parameters that the tape has read back to the host, like Close.
func TestResetOffloadsParameters(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ps := offloadedGroups(b, b.Offloader(tensor.OffloadConfig{}), 2)
	x := tapetest.Upload(b, []float64{1, 1, 1})
	tape := autograd.NoGrad(b.Ctx, b.RT)
	for range 2 {
		require.NotNil(t, tape.Mul(tape.Input(x), tape.Param(ps[0])).Value())
		require.False(t, ps[0].Value().Offloaded(), "the tape may read it again")
		require.NoError(t, tape.Reset(b.Ctx))
		require.True(t, ps[0].Value().Offloaded())
	}
	require.NoError(t, tape.Close())
}
