package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// TestResetOffloadsParameters: after a forward pass without a backward pass, Reset moves the parameters that the tape
// has read back to the host, as Close does.
func TestResetOffloadsParameters(t *testing.T) {
	b := open(t, 64<<20)
	ps := b.offloadedGroups(b.offloader(tensor.OffloadConfig{}), 2)
	x := upload(b, []float64{1, 1, 1})
	tape := autograd.NoGrad(b.ctx, b.rt)
	for range 2 {
		require.NotNil(t, tape.Mul(tape.Input(x), tape.Param(ps[0])).Value())
		require.False(t, ps[0].Value().Offloaded(), "the tape may read it again")
		require.NoError(t, tape.Reset(b.ctx))
		require.True(t, ps[0].Value().Offloaded())
	}
	require.NoError(t, tape.Close())
}
