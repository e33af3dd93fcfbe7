//go:build cuda

package cuda_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// pair is a communicator of two ranks of this process, each with a stream.
func pair(t *testing.T, opts device.CommunicatorOptions) (comms [2]device.Communicator, streams [2]device.Stream) {
	if n := collectiveRanks(t); n < 2 {
		t.Skipf("needs 2 GPUs; there are %d", n)
	}
	var id device.CommunicatorID
	var devs [2]device.Device
	for r := range devs {
		var err error
		devs[r], err = openRank(r)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, devs[r].Close()) })
		streams[r], err = devs[r].NewStream(device.StreamOptions{})
		require.NoError(t, err)
	}
	id, err := devs[0].(device.Collectives).NewCommunicatorID()
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var errs [2]error
	var both sync.WaitGroup
	for r := range devs {
		both.Go(func() { comms[r], errs[r] = devs[r].(device.Collectives).NewCommunicator(ctx, id, r, 2, opts) })
	}
	both.Wait()
	require.NoError(t, errors.Join(errs[:]...))
	return comms, streams
}

// TestCollectiveFirstTimesOut: the first operation, in which NCCL waits for the other rank to
// connect, also times out.
func TestCollectiveFirstTimesOut(t *testing.T) {
	comms, streams := pair(t, device.CommunicatorOptions{Timeout: 300 * time.Millisecond})
	began := time.Now()
	require.NoError(t, comms[0].Barrier(streams[0]))
	require.NoError(t, streams[0].Synchronize(context.Background()))
	require.Less(t, time.Since(began), 20*time.Second)
	for r := range comms {
		require.ErrorIs(t, comms[r].AsyncError(), device.ErrTimeout)
		require.ErrorContains(t, comms[r].AsyncError(), "rank 1 is missing")
		require.ErrorIs(t, comms[r].Close(), device.ErrTimeout)
	}
}

// closing connects the ranks, and closes rank 0 while only rank 0 is in a barrier.
func closing(t *testing.T, comms [2]device.Communicator, streams [2]device.Stream) <-chan error {
	var both sync.WaitGroup
	for r := range comms {
		both.Go(func() { _ = comms[r].Barrier(streams[r]) })
	}
	both.Wait()
	require.NoError(t, comms[0].Barrier(streams[0]))
	closed := make(chan error, 1)
	go func() { closed <- comms[0].Close() }()
	return closed
}

// TestCollectiveCloseWaits: Close returns after the queued operations have ended, not before.
func TestCollectiveCloseWaits(t *testing.T) {
	comms, streams := pair(t, device.CommunicatorOptions{Timeout: 20 * time.Second})
	closed := closing(t, comms, streams)
	select {
	case <-closed:
		t.Fatal("the other rank has not come yet")
	case <-time.After(100 * time.Millisecond):
	}
	require.NoError(t, comms[1].Barrier(streams[1]))
	require.NoError(t, <-closed)
	done, err := streams[0].Query()
	require.NoError(t, err)
	require.True(t, done)
	require.NoError(t, comms[1].Close())
}

// TestCollectiveCloseTimesOut: Close waits for a missing rank at most for the timeout.
func TestCollectiveCloseTimesOut(t *testing.T) {
	comms, streams := pair(t, device.CommunicatorOptions{Timeout: 300 * time.Millisecond})
	closed := closing(t, comms, streams)
	select {
	case err := <-closed:
		require.ErrorIs(t, err, device.ErrTimeout)
	case <-time.After(20 * time.Second):
		t.Fatal("Close does not end")
	}
	require.ErrorIs(t, comms[1].Close(), device.ErrTimeout)
}
