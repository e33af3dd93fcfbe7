package tensor

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestALifetimeThatGroups owns, keeps and releases like one that does not, with a sixteenth of the
// objects.
func TestALifetimeThatGroups(t *testing.T) {
	r := newRig(t, 64<<20)
	made := func(group bool) float64 {
		return testing.AllocsPerRun(20, func() {
			ctx, life := WithLifetime(r.ctx)
			if group {
				life.Group(0)
			}
			var kept *Tensor
			for range 64 {
				x, err := r.Zeros(ctx, Float32, 4)
				require.NoError(t, err)
				kept = x
			}
			life.Keep(kept)
			require.NoError(t, life.Close())
			assert.False(t, kept.Released())
			n, _ := r.Live()
			require.Equal(t, 1, n)
			require.NoError(t, kept.Release())
		})
	}
	alone, grouped := made(false), made(true)
	assert.LessOrEqual(t, grouped, alone-55, "of %v", alone)
}
