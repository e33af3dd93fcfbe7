package memcache

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

func newCache(t testing.TB, config Config) (*Cache, *scripted) {
	dev := newScripted(1 << 30)
	c, err := New(dev, config)
	require.NoError(t, err)
	return c, dev
}

func mustAlloc(t testing.TB, c *Cache, bytes int64, s device.Stream) Block {
	b, err := c.Alloc(context.Background(), bytes, s)
	require.NoError(t, err)
	return b
}

func TestReuseOnTheSameStreamIsImmediate(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	a := mustAlloc(t, c, 1<<20, s)
	require.NoError(t, a.Free())
	require.NotEqual(t, a.Ptr(), mustAlloc(t, c, 1<<20, other).Ptr())
	b := mustAlloc(t, c, 1<<20, s)
	require.Equal(t, a.Ptr(), b.Ptr())
	require.NotEqual(t, a.Serial(), b.Serial())
}

// TestRecordStream: a block that another stream uses must not be reused before that stream has
// completed its work, and must be reusable afterwards.
func TestRecordStream(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	a := mustAlloc(t, c, 3<<20, s)
	other.busy = true
	require.NoError(t, errors.Join(a.RecordStream(other), a.RecordStream(other), a.RecordStream(s)))
	require.NoError(t, a.Free())
	require.Zero(t, c.MemoryAllocated())
	require.Equal(t, a.Size(), c.Stats().ActiveBytes.All.Current)
	b := mustAlloc(t, c, 3<<20, s)
	require.NotEqual(t, a.Ptr(), b.Ptr())
	other.finish()
	require.Equal(t, a.Size()+b.Size(), c.Stats().ActiveBytes.All.Current, "asking for statistics must not poll")
	require.Equal(t, a.Ptr(), mustAlloc(t, c, 3<<20, s).Ptr())
	require.ErrorIs(t, a.RecordStream(other), ErrFreed)
}

// A stream of another device is recorded like one of the cache's own, if the devices can access
// each other's memory. It does not keep the block after its device is closed.
func TestRecordStreamOfAPeer(t *testing.T) {
	c, dev := newCache(t, Config{})
	far := newScripted(1 << 30)
	s, user := dev.stream(device.NewID()), far.stream(device.NewID())
	a := mustAlloc(t, c, 3<<20, s)
	require.ErrorIs(t, a.RecordStream(user), ErrInvalid)
	dev.peers = true
	require.ErrorIs(t, a.RecordStream(user), ErrInvalid)
	far.peers = true
	for _, end := range []func(){user.finish, func() {
		require.NoError(t, c.EmptyCache(t.Context()), "waits for it")
	}, func() { require.NoError(t, far.Device.Close()) }} {
		user.busy = true
		require.NoError(t, errors.Join(a.RecordStream(user), a.Free()))
		b := mustAlloc(t, c, 3<<20, s)
		require.NotEqual(t, a.Ptr(), b.Ptr())
		require.NoError(t, b.Free())
		end()
		_, err := c.Alloc(t.Context(), 3<<20, s) // polls
		require.NoError(t, err)
		require.Zero(t, pendingEvents(c), "nothing is pending")
		e, err := c.shards.events.Get()
		require.NoError(t, err)
		require.NoError(t, errors.Join(s.Record(e), e.Close()), "the other device's events are not kept for this one's streams")
		a = mustAlloc(t, c, 3<<20, s)
	}
	require.ErrorContains(t, c.Close(), "never freed")
}

// TestNoStreamHoldsUpAnother: completed frees of one stream return while another stream is busy.
func TestNoStreamHoldsUpAnother(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, slow, quick := dev.stream(1), dev.stream(2), dev.stream(3)
	slow.busy = true
	held := mustAlloc(t, c, 1<<20, s)
	require.NoError(t, errors.Join(held.RecordStream(slow), held.Free()))
	reserved := c.MemoryReserved()
	for range 1000 {
		b := mustAlloc(t, c, 1<<20, s)
		require.NoError(t, errors.Join(b.RecordStream(quick), b.Free()))
	}
	require.Equal(t, reserved, c.MemoryReserved())
}

func TestBlockWaitsForAllItsStreams(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, x, y := dev.stream(1), dev.stream(2), dev.stream(3)
	x.busy, y.busy = true, true
	b := mustAlloc(t, c, 1<<20, s)
	require.NoError(t, errors.Join(b.RecordStream(x), b.RecordStream(y), b.Free()))
	x.finish()
	require.NotEqual(t, b.Ptr(), mustAlloc(t, c, 1<<20, s).Ptr())
	y.finish()
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 1<<20, s).Ptr())
}

func TestClosedStreams(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, gone := dev.stream(1), dev.stream(2)
	b, d := mustAlloc(t, c, 1<<20, s), mustAlloc(t, c, 1<<20, s)
	require.NoError(t, b.RecordStream(gone))
	gone.closed.Store(true)
	require.NoError(t, errors.Join(d.RecordStream(gone), b.Free(), d.Free()))
	require.Zero(t, c.Stats().Active.All.Current, "a closed stream's uses are complete")

	s.closed.Store(true)
	_, err := c.Alloc(context.Background(), 1, s)
	require.ErrorIs(t, err, device.ErrClosed)

	// 1,000 streams that come and go share one segment.
	for id := range uint64(1000) {
		s := dev.stream(10 + id)
		require.NoError(t, mustAlloc(t, c, 1<<20, s).Free())
		s.closed.Store(true)
	}
	require.EqualValues(t, 2<<20, c.MemoryReserved())
	require.LessOrEqual(t, len(c.shards.list()), 2)
	require.NoError(t, c.check())
}

func TestBadArguments(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, foreign := dev.stream(1), newScripted(1).stream(2)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	before := c.Stats()

	b, err := c.Alloc(context.Background(), 0, s)
	require.NoError(t, err)
	require.True(t, b.IsZero())
	require.NoError(t, errors.Join(b.RecordStream(nil), b.Free(), b.Free()))

	for _, f := range []struct {
		bytes int64
		s     device.Stream
		ctx   context.Context
		want  error
	}{
		{-1, s, context.Background(), ErrInvalid},
		{1, nil, context.Background(), ErrInvalid},
		{1, foreign, context.Background(), ErrInvalid},
		{1 << 60, s, context.Background(), ErrOutOfMemory},
		{1, s, canceled, context.Canceled},
	} {
		_, err := c.Alloc(f.ctx, f.bytes, f.s)
		require.ErrorIs(t, err, f.want)
	}
	require.Equal(t, before, c.Stats())
	require.ErrorIs(t, c.EmptyCache(canceled), context.Canceled)

	b = mustAlloc(t, c, 1, s)
	require.ErrorIs(t, b.RecordStream(nil), ErrInvalid)
	require.ErrorIs(t, b.RecordStream(foreign), ErrInvalid)
	require.NoError(t, b.Free())
	require.ErrorIs(t, b.Free(), ErrFreed)

	leak := mustAlloc(t, c, 1000, s)
	require.ErrorContains(t, c.Close(), "never freed: 1, of 1024 bytes")
	require.NoError(t, c.Close())
	require.Empty(t, dev.live)
	require.ErrorIs(t, leak.Free(), ErrClosed)
	require.ErrorIs(t, leak.RecordStream(s), ErrClosed)
	_, err = c.Alloc(context.Background(), 1, s)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, c.EmptyCache(context.Background()), ErrClosed)

	_, err = New(nil, Config{})
	require.ErrorIs(t, err, ErrInvalid)
}
