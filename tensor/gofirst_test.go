package tensor

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// TestGoFirst: another stream pauses, on devices whose kernels share processors, and not in a
// capture.
func TestGoFirst(t *testing.T) {
	r := newRig(t, 64<<20)
	var launches []string
	s, err := r.dev.NewStream(device.StreamOptions{Launching: func(_ device.Stream, name string) func(error) {
		launches = append(launches, name)
		return nil
	}})
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	require.NoError(t, r.goFirst(s))
	require.NoError(t, s.Synchronize(r.ctx))
	if _, visible := r.dev.(device.HostVisible); visible {
		require.Empty(t, launches)
		return
	}
	require.Equal(t, []string{"delay"}, launches)
	if !strings.HasPrefix(cisterntest.Named(), "cuda") {
		return // the emulator has its own clock
	}
	from, err := r.dev.NewEvent(device.EventOptions{Timed: true})
	require.NoError(t, err)
	to, err := r.dev.NewEvent(device.EventOptions{Timed: true})
	require.NoError(t, err)
	require.NoError(t, s.Record(from))
	require.NoError(t, r.goFirst(s))
	require.NoError(t, s.Record(to))
	require.NoError(t, s.Synchronize(r.ctx))
	took, err := r.dev.Elapsed(from, to)
	require.NoError(t, err)
	require.GreaterOrEqual(t, took, headStart)
}
