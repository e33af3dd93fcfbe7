package nn_test

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// TestAttentionDropout: Attend, which has one product for queries, keys and values, and
// AttendWeights, which has three, drop the same weights. On a tape that does not train they drop
// none.
func TestAttentionDropout(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const steps, batch, n = 7, 2, 8
	data := normals(rand.New(rand.NewPCG(1, 71)), steps*batch*n)
	for _, options := range [][]nn.LayerOption{{nn.AttentionDropout(0.5), nn.Causal()}, {nn.AttentionDropout(0.5), nn.BatchFirst()}} {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(3))
		m := in.MultiHeadAttention(n, 2, options...)
		require.NoError(t, in.Err())
		shape := []int{steps, batch, n}
		if m.BatchFirst {
			shape = []int{batch, steps, n}
		}
		run := func(training, weights bool) (y, w []float32) {
			tape := autograd.NoGrad(b.Ctx, b.RT)
			defer func() { require.NoError(t, tape.Close()) }()
			tape.SetTraining(training)
			tape.SetSeed(5)
			x := autograd.Upload(tape, data, shape...)
			if !weights {
				return tapetest.Read[float32](b, m.Forward(tape, x).Value()), nil
			}
			result, all := m.AttendWeights(tape, x, x, x, autograd.AttentionConfig{Causal: m.Causal}, false)
			require.Equal(t, []int{batch, 2, steps, steps}, []int(all.Shape()))
			return tapetest.Read[float32](b, result.Value()), tapetest.Read[float32](b, all.Value())
		}
		plain, seen := run(false, true)
		dropped, left := run(true, true)
		same, _ := run(true, false)
		requireClose(t, dropped, same, "with dropout")
		same, _ = run(false, false)
		requireClose(t, plain, same, "without")
		assert.NotEqual(t, plain, dropped)
		zeros := 0
		for i, w := range left {
			if w == 0 && seen[i] != 0 {
				zeros++
			} else {
				require.InDelta(t, 2*seen[i], w, 1e-6)
			}
		}
		assert.InDelta(t, 0.5, float64(zeros)/float64(len(left)), 0.3)
		require.NoError(t, in.Close())
	}
	in := nn.Init(b.Ctx, b.RT)
	in.MultiHeadAttention(4, 2, nn.AttentionDropout(1.5))
	require.ErrorIs(t, in.Err(), autograd.ErrInvalid)
	_ = in.Close()
}
