package memcache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// recorder is a stream whose Record enters and waits, and notes the event.
type recorder struct {
	*scriptedStream
	entered, leave chan struct{}
	event          device.Event
}

func newRecorder(dev *scripted, id uint64) *recorder {
	return &recorder{scriptedStream: dev.stream(id), entered: make(chan struct{}), leave: make(chan struct{})}
}

func (s *recorder) Record(e device.Event) error {
	s.event = e
	close(s.entered)
	<-s.leave
	return s.scriptedStream.Record(e)
}

// TestRecordStreamOfTheOwnStreamDoesNothing, also while it is busy: the next request there comes after whatever uses the
// block.
func TestRecordStreamOfTheOwnStreamDoesNothing(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	a := mustAlloc(t, c, 3*mib, s)
	s.busy = true
	require.NoError(t, errors.Join(a.RecordStream(s), a.Free()))
	require.Zero(t, c.Stats().Active.All.Current)
	require.Equal(t, a.Ptr(), mustAlloc(t, c, 3*mib, s).Ptr())
}

// TestCloseWaitsForPendingFrees before it gives memory back that a stream still uses.
func TestCloseWaitsForPendingFrees(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: expandable})
		s, side := dev.stream(1), dev.stream(2)
		side.busy = true
		b := mustAlloc(t, c, 3*mib, s)
		require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
		var order []string
		dev.gate = func(_ context.Context, call string) error {
			order = append(order, call)
			return nil
		}
		require.NoError(t, c.Close())
		last := map[bool]string{false: "Free", true: "Unmap"}[expandable]
		require.Equal(t, []string{"Synchronize", last}, order)
	}
}

// TestFreeThatEndsAfterClose: a Free whose stream has no room for its event while Close runs finds the cache gone. Its
// event is closed, and the block, whose memory went back, is left alone.
func TestFreeThatEndsAfterClose(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, slow := dev.stream(1), newRecorder(dev, 2)
	b, neighbour := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 1000, s)
	require.NoError(t, b.RecordStream(slow))
	free := async(b.Free)
	<-slow.entered
	require.ErrorContains(t, c.Close(), "never freed: 1")
	after := c.Stats()
	close(slow.leave)
	require.NoError(t, free())
	require.Equal(t, after, c.Stats())
	require.Empty(t, c.pending.queues)
	require.Zero(t, c.alert.Load())
	_, err := slow.event.Query()
	require.ErrorIs(t, err, device.ErrClosed, "nobody would close it later")
	require.ErrorIs(t, neighbour.Free(), ErrClosed)
}

// TestEventThatIsWaitedForIsNotReused: a poll may find an event complete that a flush still waits for. It is recorded
// again only after that, and then it is.
func TestEventThatIsWaitedForIsNotReused(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, side := dev.stream(1), dev.stream(2)
	side.busy = true
	b := mustAlloc(t, c, 3*mib, s)
	require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
	h := hangAt(dev, "Synchronize")
	flush := async(func() error { return c.EmptyCache(context.Background()) })
	<-h.entered
	side.finish()
	mustAlloc(t, c, 3*mib, s) // polls
	require.Zero(t, c.alert.Load())
	require.Nil(t, c.pending.spare, "the flush waits for the event")
	close(h.leave)
	require.NoError(t, flush())
	w := c.pending.spare
	require.NotNil(t, w, "nobody waits for it now")
	b = mustAlloc(t, c, 1000, s)
	side.busy = true
	require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
	require.Nil(t, c.pending.spare)
	require.Same(t, w, c.pending.queues[0].head)
	side.finish()
	require.NoError(t, c.EmptyCache(t.Context()))
	require.Same(t, w, c.pending.spare)
}

// TestPollsDuringFreesConcurrentSafe: a block whose last event is seen complete before its Free has recorded all is
// released once, by the Free.
func TestPollsDuringFreesConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{})
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			s, a, b := dev.stream(10*g), dev.stream(10*g+1), dev.stream(10*g+2)
			for range scaled(20_000) {
				x, err := c.Alloc(context.Background(), 1000, s)
				if err = errors.Join(err, x.RecordStream(a), x.RecordStream(b), x.Free(), c.poll()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.poll())
	require.NoError(t, c.check())
	require.Zero(t, c.Stats().Active.All.Current)
	require.EqualValues(t, 4*smallSegment, c.MemoryReserved())
}

// TestCancelledWaitForAPeer ends the call, and leaves the block to the other device.
func TestCancelledWaitForAPeer(t *testing.T) {
	c, dev := newCache(t, Config{})
	far := newScripted(1 << 30)
	dev.peers, far.peers = true, true
	s, user := dev.stream(device.NewID()), far.stream(device.NewID())
	b := mustAlloc(t, c, 3*mib, s)
	user.busy = true
	require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
	for _, end := range []struct {
		after time.Duration
		want  error
	}{{0, context.Canceled}, {time.Millisecond, context.DeadlineExceeded}} {
		ctx, cancel := context.WithTimeout(t.Context(), end.after+time.Hour*time.Duration(boolToInt(end.after == 0)))
		n := 0
		far.gate = func(ctx context.Context, call string) error {
			if n++; n > 5 {
				panic("the flush goes on with a context that has ended")
			}
			if end.after == 0 {
				cancel()
			}
			<-ctx.Done()
			return ctx.Err()
		}
		require.ErrorIs(t, c.EmptyCache(ctx), end.want)
		cancel()
		st := c.Stats()
		require.EqualValues(t, 1, st.Active.All.Current-st.Allocation.All.Current)
		require.NotEqual(t, b.Ptr(), mustAlloc(t, c, 3*mib, s).Ptr(), "the peer still uses it")
	}
}

// TestStreamRecordedTwice costs one event.
func TestStreamRecordedTwice(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, side := dev.stream(1), dev.stream(2)
	side.busy = true
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, errors.Join(b.RecordStream(side), b.RecordStream(side), b.Free()))
	require.EqualValues(t, 1, c.alert.Load())
}

// TestClosedStreamsAreNotRecorded: the block does not keep them.
func TestClosedStreamsAreNotRecorded(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, gone := dev.stream(1), dev.stream(2)
	gone.closed.Store(true)
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, b.RecordStream(gone))
	require.Empty(t, b.meta.uses)
}

// TestCloseWaitsForARequestThatGrows: the segment that the driver is making is closed too.
func TestCloseWaitsForARequestThatGrows(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	h := hangAt(dev, "Alloc")
	alloc := async(func() error { _, err := c.Alloc(context.Background(), 1000, s); return err })
	<-h.entered
	closed := async(c.Close)
	time.Sleep(5 * time.Millisecond)
	close(h.leave)
	require.NoError(t, alloc())
	require.ErrorContains(t, closed(), "never freed: 1")
	require.Empty(t, dev.live)
	require.NoError(t, c.Close(), "a second time it has nothing to say")
}

// TestFailedRequestIsAMiss, and not more than one, however often it is tried.
func TestFailedRequestIsAMiss(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 20 * mib})
	c.OnPressure(func(context.Context, int64) int64 { return 0 })
	_, err := c.Alloc(t.Context(), 30*mib, dev.stream(1))
	require.ErrorIs(t, err, ErrOutOfMemory)
	st := c.Stats()
	require.Equal(t, []int64{1, 0, 1, 1}, []int64{st.Misses, st.Hits, st.NumOOMs, st.NumAllocRetries})
}
