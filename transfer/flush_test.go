package transfer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// lateRecord is a stream whose first Record waits for a channel.
type lateRecord struct {
	device.Stream
	later       *atomic.Bool
	called, may chan struct{}
}

func (s lateRecord) Record(e device.Event) error {
	if s.later.CompareAndSwap(false, true) {
		close(s.called)
		<-s.may
	}
	return s.Stream.Record(e)
}

// Two goroutines that queue copies on one stream may record their events in reverse order.
// EmptyCache waits for both copies, until ctx ends, although the completion with the highest number
// is done long before the other.
func TestEmptyCacheWaitsForEventsRecordedInAnotherOrder(t *testing.T) {
	r := newRig(t, transfer.Config{})
	r.host(t)
	block := r.alloc(t, 512, r.a)
	first, second := r.get(t, 64), r.get(t, 64)
	s := lateRecord{r.a, new(atomic.Bool), make(chan struct{}), make(chan struct{})}
	var group sync.WaitGroup
	group.Go(func() {
		if _, err := r.pool.H2D(t.Context(), s, block, 0, first, 0, 64); err != nil {
			t.Error(err)
		}
	})
	<-s.called
	c, err := r.pool.H2D(t.Context(), s, block, 64, second, 0, 64)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	close(s.may)
	group.Wait()
	require.NoError(t, first.Release())
	require.NoError(t, second.Release())
	require.NoError(t, c.Wait(t.Context()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	defer time.AfterFunc(2*time.Second, open).Stop()
	require.ErrorIs(t, r.pool.EmptyCache(ctx), context.DeadlineExceeded)
	open()
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	require.Zero(t, r.pool.Stats().CachedBytes.Current)
	require.NoError(t, block.Free())
}
