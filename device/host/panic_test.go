package host

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/matching"
)

// TestCollectiveThatPanics: if a rank's share panics, because its memory is shorter than its call
// says, the other ranks fail at once with an error that names the rank. Otherwise they would wait
// forever, because they leave only when no rank accesses their memory.
func TestCollectiveThatPanics(t *testing.T) {
	const ranks, bad = 4, 2
	d, comms, streams := ranksOf(t, ranks)
	for r, comm := range comms {
		c := comm.(*communicator)
		calls := []matching.Call{{Kind: matching.AllGather, Count: 10, Type: device.Float32}}
		mem := []memory{{dst: make([]byte, 40*ranks), src: make([]byte, 40)}}
		if r == bad {
			mem[0].dst = nil
		}
		require.NoError(t, streams[r].Launch(&device.Launch{Func: func() { c.run(calls, mem, 1) }}))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for r, c := range comms {
		require.NotErrorIs(t, streams[r].Synchronize(ctx), context.DeadlineExceeded, "rank %d hangs", r)
		err := c.AsyncError()
		require.ErrorIs(t, err, device.ErrAborted)
		require.ErrorContains(t, err, "rank 2 panicked in AllGather number 1 of 10 float32")
		var e *device.CollectiveError
		require.ErrorAs(t, err, &e)
		require.Equal(t, []int{bad}, e.Ranks)
		require.Zero(t, c.(*communicator).world.working)
		require.Nil(t, c.(*communicator).world.ranks[r].post)
	}
	require.ErrorIs(t, d.Synchronize(ctx), device.ErrSticky)
	for _, c := range comms {
		require.ErrorIs(t, c.Close(), device.ErrAborted)
	}
	_ = d.Close() // returns the sticky error again
}
