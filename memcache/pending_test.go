package memcache

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// TestRequestsAskForTheirOwnFrees: a hit does not poll the frees of other streams, even if their
// events are complete. A miss does, and so does every request with Exact.
func TestRequestsAskForTheirOwnFrees(t *testing.T) {
	for _, exact := range []bool{false, true} {
		t.Run(fmt.Sprintf("exact=%t", exact), func(t *testing.T) {
			c, dev := newCache(t, Config{Exact: exact})
			s, other, user := dev.stream(1), dev.stream(2), dev.stream(3)
			require.NoError(t, mustAlloc(t, c, 1000, s).Free())
			user.busy = true
			b := mustAlloc(t, c, 1000, other)
			require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
			lost := errors.New("lost")
			q := c.shards.of(other).pending.queues[0]
			q.head.event = &failingEvent{q.head.event, &failsOnce{lost}}
			hit, err := c.Alloc(t.Context(), 1000, s)
			if exact {
				require.ErrorIs(t, err, lost)
				return
			}
			require.NoError(t, err)
			require.NoError(t, hit.Free())
			_, err = c.Alloc(t.Context(), 3*mib, s)
			require.ErrorIs(t, err, lost, "a miss asks for all")
			user.finish()
			require.EqualValues(t, 1, c.Stats().Active.All.Current)
			require.NoError(t, mustAlloc(t, c, 1000, s).Free())
			require.EqualValues(t, 1, c.Stats().Active.All.Current, "nobody has asked")
			require.NoError(t, mustAlloc(t, c, 3*mib, s).Free())
			require.Zero(t, c.Stats().Active.All.Current)
			require.NoError(t, c.check())
		})
	}
}

// TestMissTakesWhatAClosedStreamHadPending: the memory serves another request before the driver is
// called.
func TestMissTakesWhatAClosedStreamHadPending(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, gone, user := dev.stream(1), dev.stream(2), dev.stream(3)
	user.busy = true
	b := mustAlloc(t, c, 3*mib, gone)
	require.NoError(t, errors.Join(b.RecordStream(user), b.Free()))
	gone.closed.Store(true)
	user.finish()
	require.Equal(t, b.Ptr(), mustAlloc(t, c, 3*mib, s).Ptr())
	require.EqualValues(t, 1, c.Stats().NumDeviceAlloc)
}

// TestPollFrees: complete frees of every stream are no longer active; incomplete ones are.
func TestPollFrees(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c, dev := newCache(t, Config{Exact: exact})
		user, busy := dev.stream(100), dev.stream(101)
		for id := range uint64(3) {
			for _, u := range []*scriptedStream{user, busy} {
				u.busy = true
				b := mustAlloc(t, c, 1000, dev.stream(1+id))
				require.NoError(t, errors.Join(b.RecordStream(u), b.Free()))
			}
		}
		require.NoError(t, c.PollFrees())
		require.EqualValues(t, 6, c.Stats().Active.All.Current)
		user.finish()
		require.EqualValues(t, 6, c.Stats().Active.All.Current, "statistics do not ask")
		require.NoError(t, c.PollFrees())
		require.EqualValues(t, 3, c.Stats().Active.All.Current)
		busy.finish()
		require.NoError(t, c.Close())
		require.NoError(t, c.PollFrees(), "nothing is left")
	}
}

// TestFlushOfManyStreamsEnds although other streams continue to free blocks that stay in use for
// long.
func TestFlushOfManyStreamsEnds(t *testing.T) {
	c, dev := newCache(t, Config{})
	pend := func(owner, user uint64) *scriptedStream {
		u := dev.stream(user)
		u.busy = true
		b := mustAlloc(t, c, 1000, dev.stream(owner))
		require.NoError(t, errors.Join(b.RecordStream(u), b.Free()))
		return u
	}
	pend(1, 10)
	pend(2, 20)
	h := hangAt(dev, "Synchronize")
	flush := async(func() error { return c.EmptyCache(t.Context()) })
	<-h.entered
	later := pend(2, 21) // of a stream that the flush has not come to
	close(h.leave)
	require.NoError(t, flush())
	require.True(t, later.busy, "it was not waited for")
	require.EqualValues(t, 1, pendingEvents(c))
	later.finish()
	require.NoError(t, c.Close())
}

// TestFreesOfManyStreamsThatEndAfterClose: none leaves its event open, on any stream.
func TestFreesOfManyStreamsThatEndAfterClose(t *testing.T) {
	c, dev := newCache(t, Config{})
	var recorders []*recorder
	var frees []func() error
	for id := range uint64(3) {
		b, r := mustAlloc(t, c, 1000, dev.stream(1+id)), newRecorder(dev, 10+id)
		require.NoError(t, b.RecordStream(r))
		recorders, frees = append(recorders, r), append(frees, async(b.Free))
		<-r.entered
	}
	require.NoError(t, c.Close())
	for i, r := range recorders {
		close(r.leave)
		require.NoError(t, frees[i]())
		_, err := r.event.Query()
		require.ErrorIs(t, err, device.ErrClosed)
	}
}

// TestEventsQueueAfterThoseThatStay: when the last event of a stream's queue is taken out before
// earlier ones, the next event is queued after the events that stay.
func TestEventsQueueAfterThoseThatStay(t *testing.T) {
	for name, c := range map[string]struct {
		config Config
		take   func(t *testing.T, c *Cache, own, third, by *scriptedStream) // leaves one pending free
	}{
		"WaitStream": {Config{Exact: true}, func(t *testing.T, c *Cache, own, third, by *scriptedStream) {
			used(t, c, 12*mib, third, by)
			used(t, c, 14*mib, own, by)
			require.NoError(t, c.WaitStream(own, by))
		}},
		"a reuse": {Config{ReuseAcrossStreams: ReuseBeforeGrowth}, func(t *testing.T, c *Cache, own, _, by *scriptedStream) {
			used(t, c, 12*mib, own, by)
			b := used(t, c, 60*mib, own, by)
			again := mustAlloc(t, c, 60*mib, own)
			require.Equal(t, b.Ptr(), again.Ptr())
			require.NoError(t, again.Free())
		}},
		"EmptyCache of a pool": {Config{Exact: true}, func(t *testing.T, c *Cache, own, _, by *scriptedStream) {
			pool, err := c.NewPool(PoolOptions{})
			require.NoError(t, err)
			b, err := c.Alloc(pool.Context(t.Context()), 14*mib, own)
			require.NoError(t, err)
			used(t, c, 12*mib, own, by)
			require.NoError(t, errors.Join(b.RecordStream(by), b.Free(), pool.Release()))
			by.finish()
			require.NoError(t, pool.EmptyCache(t.Context()))
		}},
	} {
		t.Run(name, func(t *testing.T) {
			cache, dev := newCache(t, c.config)
			own, third, by := dev.stream(1), dev.stream(2), dev.stream(3)
			next := mustAlloc(t, cache, 18*mib, own) // a later request would poll, with Exact
			c.take(t, cache, own, third, by)
			require.EqualValues(t, 2, cache.Stats().Active.All.Current)
			by.busy = true
			require.NoError(t, errors.Join(next.RecordStream(by), next.Free()))
			require.EqualValues(t, 2, cache.Stats().Active.All.Current)
			by.finish()
			require.NoError(t, errors.Join(cache.PollFrees(), cache.check()))
			require.Zero(t, cache.Stats().Active.All.Current)
		})
	}
}
