package host

import (
	"context"
	"math/rand/v2"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// joining is a call of NewCommunicator.
type joining struct {
	leave context.CancelFunc
	done  chan error
	comm  device.Communicator // valid when done
}

// join begins a call. A call that need not wait gets a context that has ended, which must make no
// difference.
func join(t *testing.T, d *Device, id device.CommunicatorID, rank, size int, waits bool) *joining {
	j := &joining{done: make(chan error, 1)}
	ctx, leave := context.WithCancel(t.Context())
	if j.leave = leave; !waits {
		leave()
	}
	go func() {
		var err error
		j.comm, err = d.NewCommunicator(ctx, id, rank, size, device.CommunicatorOptions{})
		j.done <- err
	}()
	return j
}

// here returns the number of ranks that wait with an id.
func (l *gatheringList) here(id device.CommunicatorID) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := l.open[id]; g != nil {
		return g.here
	}
	return 0
}

// TestGatherings: ranks join, leave, join twice or join with another size, in random order. The
// result of each call matches a model. After that the id is free again and nothing is left.
func TestGatherings(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	ended := map[string]int{}
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 1))
		id, err := d.NewCommunicatorID()
		require.NoError(t, err)
		size, waiting := 0, map[int]*joining{}
		leave := func(rank int) {
			var missing []int
			for m := range size {
				if waiting[m] == nil {
					missing = append(missing, m)
				}
			}
			j := waiting[rank]
			delete(waiting, rank)
			j.leave()
			err := <-j.done
			require.ErrorIs(t, err, device.ErrTimeout)
			require.ErrorIs(t, err, context.Canceled)
			var e *device.CollectiveError
			require.ErrorAs(t, err, &e)
			require.Equal(t, missing, e.Ranks)
			ended["left"]++
		}
		for range 40 {
			if len(waiting) == 0 {
				size = 1 + r.IntN(4)
			}
			n, rank := size, r.IntN(size)
			if r.IntN(8) == 0 {
				n = rank + 1 + r.IntN(4)
			}
			switch {
			case waiting[rank] != nil && r.IntN(2) == 0:
				leave(rank)
			case len(waiting) > 0 && n != size:
				j := join(t, d, id, rank, n, false)
				for _, one := range waiting {
					require.ErrorIs(t, <-one.done, device.ErrMismatch)
				}
				require.ErrorIs(t, <-j.done, device.ErrMismatch)
				clear(waiting)
				ended["mismatch"]++
			case waiting[rank] != nil:
				require.ErrorIs(t, <-join(t, d, id, rank, n, false).done, device.ErrInvalid)
				ended["twice"]++
			default:
				size = n
				waits := len(waiting)+1 < size
				waiting[rank] = join(t, d, id, rank, n, waits)
				if waits {
					for gatherings.here(id) < len(waiting) {
						require.Empty(t, waiting[rank].done, "it does not wait")
						runtime.Gosched()
					}
					break
				}
				for m, j := range waiting {
					require.NoError(t, <-j.done)
					require.Equal(t, []int{m, size}, []int{j.comm.Rank(), j.comm.Size()})
				}
				for _, j := range waiting {
					require.NoError(t, j.comm.Close())
					j.leave()
				}
				clear(waiting)
				ended["whole"]++
			}
			require.Equal(t, len(waiting), gatherings.here(id))
		}
		for rank := range size {
			if waiting[rank] != nil {
				leave(rank)
			}
		}
		gatherings.mu.Lock()
		require.NotContains(t, gatherings.open, id)
		gatherings.mu.Unlock()
	}
	for _, how := range []string{"left", "mismatch", "twice", "whole"} {
		require.Greater(t, ended[how], 20, how)
	}
	require.NoError(t, d.Close())
}

// TestDeviceClosedWhileJoining: if a rank's device is closed before all ranks have joined, the rank
// has left, and the others need not wait for the timeout.
func TestDeviceClosedWhileJoining(t *testing.T) {
	d, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	gone, err := New(Config{Capacity: 1 << 20})
	require.NoError(t, err)
	id, err := d.NewCommunicatorID()
	require.NoError(t, err)
	j := join(t, gone, id, 0, 2, true)
	for gatherings.here(id) < 1 {
		runtime.Gosched()
	}
	require.NoError(t, gone.Close())
	c, err := d.NewCommunicator(t.Context(), id, 1, 2, device.CommunicatorOptions{Timeout: 5 * time.Second})
	require.NoError(t, err)
	require.ErrorIs(t, <-j.done, device.ErrClosed)
	j.leave()
	s, err := d.NewStream(device.StreamOptions{})
	require.NoError(t, err)
	require.NoError(t, c.Barrier(s))
	_ = s.Synchronize(t.Context())
	require.ErrorIs(t, c.AsyncError(), device.ErrAborted)
	require.ErrorIs(t, c.Close(), device.ErrAborted)
	require.NoError(t, s.Close())
	require.NoError(t, d.Close())
}
