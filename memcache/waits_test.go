package memcache

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// recorder is a stream whose Record signals and blocks, and records the event.
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

// TestRecordStreamOfTheOwnStreamDoesNothing, also while the stream is busy: the next request on it
// runs after all uses of the block.
func TestRecordStreamOfTheOwnStreamDoesNothing(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	a := mustAlloc(t, c, 3*mib, s)
	s.busy = true
	require.NoError(t, errors.Join(a.RecordStream(s), a.Free()))
	require.Zero(t, c.Stats().Active.All.Current)
	require.Equal(t, a.Ptr(), mustAlloc(t, c, 3*mib, s).Ptr())
}

// TestCloseWaitsForPendingFrees before it frees memory that a stream still uses.
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

// TestFreeThatEndsAfterClose: a Free whose stream's queue is full while Close runs finds the cache
// closed. Its event is closed, and the block, whose memory was freed, is left alone.
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
	require.Empty(t, c.shards.of(s).pending.queues)
	require.Zero(t, pendingEvents(c))
	_, err := slow.event.Query()
	require.ErrorIs(t, err, device.ErrClosed, "nobody would close it later")
	require.ErrorIs(t, neighbour.Free(), ErrClosed)
}

// TestEventThatIsWaitedForIsNotReused: a poll may find an event complete that a flush still waits
// for. The event is reused only after that wait.
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
	require.Zero(t, pendingEvents(c))
	require.Nil(t, c.shards.of(s).pending.spare, "the flush waits for the event")
	close(h.leave)
	require.NoError(t, flush())
	e := c.shards.of(s).pending.spare
	require.NotNil(t, e, "nobody waits for it now")
	b = mustAlloc(t, c, 1000, s)
	side.busy = true
	require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
	require.Nil(t, c.shards.of(s).pending.spare)
	require.Same(t, e, c.shards.of(s).pending.queues[0].head)
	side.finish()
	require.NoError(t, c.EmptyCache(t.Context()))
	require.Same(t, e, c.shards.of(s).pending.spare)
}

// TestPollsDuringFreesConcurrentSafe: a block whose last event is seen complete before its Free has
// recorded all events is released once, by the Free.
func TestPollsDuringFreesConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{})
	var wg sync.WaitGroup
	for g := range uint64(4) {
		wg.Go(func() {
			s, a, b := dev.stream(10*g), dev.stream(10*g+1), dev.stream(10*g+2)
			for range scaled(20_000) {
				x, err := c.Alloc(context.Background(), 1000, s)
				if err = errors.Join(err, x.RecordStream(a), x.RecordStream(b), x.Free(), c.shards.pollPending()); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, c.shards.pollPending())
	require.NoError(t, c.check())
	require.Zero(t, c.Stats().Active.All.Current)
	require.EqualValues(t, 4*sizes.SmallSegment, c.MemoryReserved())
}

// TestPollsDuringFreesOneByOne: a poll that finds the last event complete before the free has
// marked it as the last leaves the block to the free.
func TestPollsDuringFreesOneByOne(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, b.RecordStream(other))
	own := c.shards.of(s)
	own.mu.Lock()
	uses, fits, err := own.endHandOut(&b, new(freeRecord), false)
	own.mu.Unlock()
	require.NoError(t, err)
	require.True(t, fits)
	require.Len(t, uses, 1)
	e, err := c.shards.of(s).pending.recordEvent(other)
	require.NoError(t, err)
	require.NoError(t, c.shards.of(s).pending.push(other, e, b.handout))
	require.NoError(t, c.shards.pollPending())
	require.EqualValues(t, 1, c.Stats().Active.All.Current)
	require.True(t, c.shards.of(s).pending.recordingDone(b.handout))
	c.shards.of(s).pending.complete(b.handout, true)
	require.Zero(t, c.Stats().Active.All.Current)
	require.NoError(t, c.check())
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

// TestStreamRecordedTwice: it needs one event.
func TestStreamRecordedTwice(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, side := dev.stream(1), dev.stream(2)
	side.busy = true
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, errors.Join(b.RecordStream(side), b.RecordStream(side), b.Free()))
	require.EqualValues(t, 1, pendingEvents(c))
}

// TestClosedStreamsAreNotRecorded: the block does not keep them.
func TestClosedStreamsAreNotRecorded(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, gone := dev.stream(1), dev.stream(2)
	gone.closed.Store(true)
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, b.RecordStream(gone))
	require.Empty(t, b.handout.uses)
}

// TestCloseWaitsForARequestThatGrows: the segment that the driver is allocating is freed, too.
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

// TestFailedRequestIsAMiss: it counts once, however often it is retried.
func TestFailedRequestIsAMiss(t *testing.T) {
	c, dev := newCache(t, Config{MemoryLimit: 20 * mib})
	c.OnPressure(func(context.Context, int64) int64 { return 0 })
	_, err := c.Alloc(t.Context(), 30*mib, dev.stream(1))
	require.ErrorIs(t, err, ErrOutOfMemory)
	st := c.Stats()
	require.Equal(t, []int64{1, 0, 1, 1}, []int64{st.Misses, st.Hits, st.NumOOMs, st.NumAllocRetries})
}

// TestFlushWaitsForWhatWasPendingWhenItBegan, the oldest first, and not for later frees.
func TestFlushWaitsForWhatWasPendingWhenItBegan(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(10)
	pend := func(side *scriptedStream) {
		side.busy = true
		b := mustAlloc(t, c, 3*mib, s)
		require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
	}
	a, b, later := dev.stream(5), dev.stream(6), dev.stream(1)
	pend(b)
	pend(a)
	h := hangAt(dev, "Synchronize")
	flush := async(func() error { return c.EmptyCache(context.Background()) })
	<-h.entered
	pend(later)
	close(h.leave)
	require.NoError(t, flush())
	require.EqualValues(t, 1, pendingEvents(c))
	require.Equal(t, uint64(1), c.shards.of(s).pending.queues[0].stream)
	later.finish()
	require.NoError(t, c.Close())
}

// moody is a device that counts its events, and fails on request.
type moody struct {
	*scripted
	made, closed  int
	create, query error
}

type moodyEvent struct {
	device.Event
	dev *moody
}

func (d *moody) NewEvent(o device.EventOptions) (device.Event, error) {
	if d.create != nil {
		return nil, d.create
	}
	e, err := d.scripted.NewEvent(o)
	d.made++
	return &moodyEvent{e, d}, err
}

func (e *moodyEvent) Query() (bool, error) {
	if e.dev.query != nil {
		return false, e.dev.query
	}
	return e.Event.Query()
}

func (e *moodyEvent) Synchronize(ctx context.Context) error {
	if e.dev.query != nil {
		return e.dev.query
	}
	return e.Event.Synchronize(ctx)
}

func (e *moodyEvent) Close() error {
	e.dev.closed++
	return e.Event.Close()
}

type moodyStream struct {
	*scriptedStream
	dev    *moody
	record error
	waits  int
	wait   error
}

func (s *moodyStream) Device() device.Device { return s.dev }

func (s *moodyStream) Record(e device.Event) error {
	if s.record != nil {
		return s.record
	}
	return s.scriptedStream.Record(e.(*moodyEvent).Event)
}

func (s *moodyStream) Synchronize(ctx context.Context) error {
	s.waits++
	return errors.Join(s.wait, s.scriptedStream.Synchronize(ctx))
}

func newMoody(t *testing.T) (*Cache, *moody, func(id uint64) *moodyStream) {
	dev := &moody{scripted: newScripted(1 << 30)}
	c, err := New(dev, Config{})
	require.NoError(t, err)
	return c, dev, func(id uint64) *moodyStream { return &moodyStream{scriptedStream: dev.scripted.stream(id), dev: dev} }
}

// TestEventsAreMadeOnceAndClosed: a free reuses the event of an earlier one, and Close closes all
// events.
func TestEventsAreMadeOnceAndClosed(t *testing.T) {
	if race.Enabled {
		t.Skip("in race builds every event is new")
	}
	c, dev, stream := newMoody(t)
	s, side := stream(1), stream(2)
	for range 10 {
		for range 3 {
			b := mustAlloc(t, c, 1000, s)
			require.NoError(t, errors.Join(b.RecordStream(side), b.Free()))
		}
	}
	require.Equal(t, []int{1, 0}, []int{dev.made, dev.closed})
	b := mustAlloc(t, c, 1000, s)
	require.NoError(t, b.RecordStream(side))
	side.record = errors.New("refused")
	require.NoError(t, b.Free())
	require.Equal(t, 1, side.waits, "no event could be recorded")
	side.record = nil
	d := mustAlloc(t, c, 1000, s)
	require.NoError(t, errors.Join(d.RecordStream(side), d.Free()))
	require.Equal(t, 1, dev.made, "the event that was not recorded is kept")
	require.Nil(t, d.handout.uses[:1][0], "the block does not keep the stream")
	require.NoError(t, c.Close())
	require.Equal(t, 1, dev.closed)
}

// TestFreeWithoutEvents waits for the stream instead, and returns the stream's error.
func TestFreeWithoutEvents(t *testing.T) {
	c, dev, stream := newMoody(t)
	s, side := stream(1), stream(2)
	free := func() error {
		b := mustAlloc(t, c, 1000, s)
		require.NoError(t, b.RecordStream(side))
		err := b.Free()
		require.Zero(t, c.Stats().Active.All.Current)
		return err
	}
	dev.create = errors.New("no events")
	require.NoError(t, free())
	require.Equal(t, 1, side.waits)
	side.wait = errors.New("faulted")
	require.ErrorIs(t, free(), side.wait)
	side.closed.Store(true)
	require.NoError(t, free(), "recorded nothing")
	require.NoError(t, c.check())
}

// TestQueryThatFails: the request fails, earlier frees are complete, and the others stay pending.
func TestQueryThatFails(t *testing.T) {
	c, dev, stream := newMoody(t)
	s, first, second := stream(1), stream(2), stream(3)
	first.busy, second.busy = true, true
	a, b := mustAlloc(t, c, 1000, s), mustAlloc(t, c, 1000, s)
	require.NoError(t, errors.Join(a.RecordStream(first), a.Free(), b.RecordStream(second), b.Free()))
	first.finish()
	failing := &failsOnce{err: errors.New("lost")}
	c.shards.of(s).pending.queues[1].head.event = &failingEvent{c.shards.of(s).pending.queues[1].head.event, failing}
	_, err := c.Alloc(t.Context(), 1000, s)
	require.ErrorIs(t, err, failing.err)
	require.EqualValues(t, 1, c.Stats().Active.All.Current, "the first is complete")
	require.Len(t, c.shards.of(s).pending.queues, 1)
	c.shards.of(s).pending.queues[0].head.event.(*failingEvent).fails = failing
	second.finish()
	require.ErrorIs(t, c.EmptyCache(t.Context()), failing.err)
	require.NoError(t, mustAlloc(t, c, 1000, s).Free())
	require.Zero(t, c.Stats().Active.All.Current)
	require.NoError(t, errors.Join(c.check(), c.Close()))
	require.Equal(t, dev.made, dev.closed)
}

type failsOnce struct{ err error }

type failingEvent struct {
	device.Event
	fails *failsOnce
}

func (e *failingEvent) Query() (bool, error) {
	if f := e.fails; f != nil {
		e.fails = nil
		return false, f.err
	}
	return e.Event.Query()
}

// TestEventsOfAPeerAreClosed, because the cache's own streams can't use them.
func TestEventsOfAPeerAreClosed(t *testing.T) {
	c, dev := newCache(t, Config{})
	far := &moody{scripted: newScripted(1 << 30)}
	dev.peers, far.peers = true, true
	s, user := dev.stream(device.NewID()), &moodyStream{scriptedStream: far.scripted.stream(device.NewID()), dev: far}
	for range 3 {
		b := mustAlloc(t, c, 1000, s)
		require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
	}
	require.NoError(t, c.shards.pollPending())
	require.Equal(t, []int{3, 3}, []int{far.made, far.closed})
}

// TestRecordedFreesAllocateNothing: they make no Go allocation after the first ones.
func TestRecordedFreesAllocateNothing(t *testing.T) {
	if invariants.Enabled || race.Enabled {
		t.Skip("the checks after each call allocate, and in race builds every event is new")
	}
	c, dev := newCache(t, Config{})
	s, sides := dev.stream(1), []*scriptedStream{dev.stream(2), dev.stream(3)}
	n := testing.AllocsPerRun(100, func() {
		b, err := c.Alloc(context.Background(), 1000, s)
		for _, side := range sides {
			err = errors.Join(err, b.RecordStream(side))
		}
		if err = errors.Join(err, b.Free(), c.shards.pollPending()); err != nil {
			t.Error(err)
		}
	})
	require.Zero(t, n)
	require.Empty(t, c.shards.of(s).pending.queues)
	for _, q := range c.shards.of(s).pending.queues[:cap(c.shards.of(s).pending.queues)] {
		require.Nil(t, q, "unused queues are linked to each other alone")
	}
}

// TestFirstRequestsOfOneStream: concurrent ones create one shard.
func TestFirstRequestsOfOneStream(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	c.shards.mu.Lock()
	var found [3]*shard
	var wg sync.WaitGroup
	for i := range found {
		wg.Go(func() { found[i] = c.shards.of(s) })
	}
	time.Sleep(time.Millisecond)
	c.shards.mu.Unlock()
	wg.Wait()
	require.Len(t, c.shards.list(), 1)
	for _, f := range found {
		require.Same(t, c.shards.list()[0], f)
	}
}

// pendingEvents returns the number of pending events of all shards.
func pendingEvents(c *Cache) (n int64) {
	for _, p := range c.shards.allPending() {
		n += p.events.Load()
	}
	return n
}
