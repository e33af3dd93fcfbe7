package nn_test

import (
	"context"
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/nn"
	_ "github.com/cistern-ml/cistern/device/dry"
	"github.com/cistern-ml/cistern/tensor"
)

// TestDryDrawsNothing: on a device that keeps no values, parameters are made but no values are
// drawn.
func TestDryDrawsNothing(t *testing.T) {
	if bits.UintSize < 64 {
		t.Skip("dry devices need addresses of 64 bits")
	}
	for device, dry := range map[string]bool{"host": false, "dry:host": true} {
		rt, err := tensor.Open(device)
		require.NoError(t, err)
		in := nn.Init(context.Background(), rt)
		drawn := 0
		initial := func(_ *rand.Rand, _ tensor.Shape, data []float64) error { drawn += len(data); return nil }
		p := in.Draw(initial, 3, 4)
		in.Reset(p, initial)
		before, err := in.RandomState()
		require.NoError(t, err)
		require.Equal(t, 5*7+5, in.Linear(7, 5).Parameters().Elements())
		after, err := in.RandomState()
		require.NoError(t, err)
		require.NoError(t, in.Err())
		require.Equal(t, dry, drawn == 0, device)
		require.Equal(t, dry, string(before) == string(after), device)
		require.Equal(t, tensor.Shape{3, 4}, p.Value().Shape())
		require.NoError(t, in.Close())
		require.NoError(t, rt.Close())
	}
}
