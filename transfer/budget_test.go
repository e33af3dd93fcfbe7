package transfer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
)

// idles returns the number of each shard's idle slabs of a class.
func (p *Pool) idles(bytes int64) []int {
	class, _ := classOf(bytes)
	var n []int
	for _, sh := range p.cache.shards {
		k := 0
		for s := sh.idle[class]; s != nil; s = s.below {
			k++
		}
		n = append(n, k)
	}
	return n
}

// The least recently used slab is evicted for a newer one, in any shard.
func TestLeastRecentlyUsedOfAllShardsGoes(t *testing.T) {
	p := newShards(t, Config{MaxCachedBytes: 4 * 64}, 4)
	for _, i := range []int{2, 1, 3} {
		p.idleIn(t, p.cache.shards[i], 64)
		p.cache.trim(t.Context())
	}
	var bufs [2]Buffer
	for i := range bufs {
		var err error
		bufs[i], err = p.Get(t.Context(), 65)
		require.NoError(t, err)
	}
	require.NoError(t, bufs[0].Release())
	require.Equal(t, []int{0, 1, 0, 1}, p.idles(64), "of 64, 64, 64 and 128 the first has to go")
	require.Equal(t, []int{0, 0, 0, 1}, p.idles(128))
	b, err := p.Get(t.Context(), 64)
	require.NoError(t, err)
	require.NoError(t, b.Release())
	require.Equal(t, []int{0, 1, 0, 1}, p.idles(64))
	require.NoError(t, bufs[1].Release())
	require.Equal(t, []int{0, 0, 0, 1}, p.idles(64), "the one that was used again is the newest of them")
	require.Equal(t, []int{0, 0, 0, 1}, p.idles(128))
	require.EqualValues(t, 4*64, p.Stats().CachedBytes.Peak)
}

// A shard may use the budget and the number of buffers that other shards don't use, even all of it.
func TestShardsLendTheirParts(t *testing.T) {
	const shards = 4
	p := newShards(t, Config{MaxCachedBytes: 64 * shards, MaxCachedBuffers: shards}, shards)
	for i := range shards { // each has a part of what is left
		p.idleIn(t, p.cache.shards[i], 64)
	}
	var bufs []Buffer
	for range shards {
		b, err := p.Get(t.Context(), 64)
		require.NoError(t, err)
		bufs = append(bufs, b)
	}
	require.Equal(t, make([]int, shards), p.idles(64))
	for _, b := range bufs {
		require.NoError(t, b.Release())
	}
	require.Equal(t, []int{0, 0, 0, shards}, p.idles(64), "the last shard, which all calls use, has all")
	require.Zero(t, p.Stats().HostFrees)
	_, err := p.audit()
	require.NoError(t, err)
}

// Shards that have idle slabs in turn keep the peak within the budget, and evict none for another
// shard.
func TestPeakOfCachedBytesOfTurns(t *testing.T) {
	const shards = 4
	p := newShards(t, Config{MaxCachedBytes: 2 * 64}, shards)
	p.idleIn(t, p.cache.shards[0], 64)
	class, _ := classOf(64)
	for i := range 100 {
		from, to := p.cache.shards[i%shards], p.cache.shards[(i+1)%shards]
		from.Lock()
		s := from.takeAndUnlock(class, 64)
		to.Lock()
		to.takeBack(s, 64)
		to.Unlock()
		require.False(t, p.cache.excessive.Load())
		require.LessOrEqual(t, p.Stats().CachedBytes.Peak, int64(2*64))
		_, err := p.audit()
		require.NoError(t, err)
	}
	st := p.Stats()
	require.EqualValues(t, 64, st.CachedBytes.Current)
	require.Equal(t, memcache.Stat{Peak: 1, Allocated: 101, Freed: 101}, st.ActiveRequests, "what one shard handed out came back to another")
}

// Two goroutines may commit their copies on one stream in reverse order: the buffer waits for the
// later copy, and a write is not forgotten.
func TestCopiesNotedInAnotherOrder(t *testing.T) {
	s := &slab{queueing: 3, writing: true}
	first, second, third := &completion{stream: 7, seq: 1}, &completion{stream: 7, seq: 2}, &completion{stream: 7, seq: 3}
	require.Nil(t, s.commit(second, false))
	require.Same(t, first, s.commit(first, true), "it ends before the other")
	require.Equal(t, []use{{7, second, true}}, s.uses)
	require.Same(t, second, s.commit(third, false))
	require.Equal(t, []use{{7, third, true}}, s.uses)
	require.Zero(t, s.queueing)
	require.Nil(t, s.commit(&completion{stream: 8, seq: 1}, false), "another stream's copies are apart")
	require.Len(t, s.uses, 2)
}

// EmptyCache waits for copies that were queued before it, and not for those that are queued
// meanwhile.
func TestLastOfWhatHoldsUp(t *testing.T) {
	p := newShards(t, Config{}, 2)
	stream := cisterntest.Stream(t, p.dev)
	cache, err := memcache.New(p.dev, memcache.Config{})
	require.NoError(t, err)
	block, err := cache.Alloc(t.Context(), 64, stream)
	require.NoError(t, err)
	open := cisterntest.Hold(t, stream)
	before := p.recorded.Load()
	require.Nil(t, p.cache.lastPending(before))
	var ends []*completion
	for range 3 {
		b, err := p.Get(t.Context(), 64)
		require.NoError(t, err)
		c, err := p.H2D(t.Context(), stream, block, 0, b, 0, 64)
		require.NoError(t, err)
		require.NoError(t, b.Release())
		ends = append(ends, c.end)
	}
	require.Nil(t, p.cache.lastPending(before), "all came later")
	_, err = p.recordEnd(stream) // holds up nothing
	require.NoError(t, err)
	for _, m := range ends {
		require.Same(t, m, p.cache.lastPending(m.seq))
	}
	require.Same(t, ends[2], p.cache.lastPending(p.recorded.Load()))
	_, wait := p.cache.drain(before)
	require.Nil(t, wait)
	open()
	require.NoError(t, stream.Synchronize(context.Background()))
	require.Nil(t, p.cache.lastPending(p.recorded.Load()), "all are done")
	require.NoError(t, block.Free())
	require.NoError(t, cache.Close())
	require.NoError(t, stream.Close())
}

// A DurationStat has the sum, the shortest and the longest of its durations.
func TestDurations(t *testing.T) {
	var d DurationStat
	require.Zero(t, d.Average())
	for _, took := range []time.Duration{5, 3, 7, 5} {
		d.add(took)
	}
	require.Equal(t, DurationStat{Count: 4, Total: 20, Min: 3, Max: 7}, d)
	require.EqualValues(t, 5, d.Average())
}

// Classes are in the order of their sizes, and each one is used.
func TestClasses(t *testing.T) {
	last, lastSize, size := -1, int64(0), int64(0)
	for n := int64(1); n <= maxBytes; n = size + 1 {
		var class int
		class, size = classOf(n)
		require.Equal(t, last+1, class, "%d bytes", n)
		require.GreaterOrEqual(t, size, n)
		if n <= linear {
			require.EqualValues(t, grain, size-lastSize, "%d bytes", n)
		}
		again, same := classOf(size)
		require.Equal(t, class, again)
		require.Equal(t, size, same)
		last, lastSize = class, size
	}
	require.Equal(t, classes-1, last)
	require.EqualValues(t, int64(maxBytes), size)
}

// A slab whose class is full is freed, and the others stay, however old they are.
func TestFullClassLeavesOthersAlone(t *testing.T) {
	p := newShards(t, Config{MaxCachedBuffers: 1}, 2)
	p.idleIn(t, p.cache.shards[0], 64)
	var bufs [2]Buffer
	for i := range bufs {
		var err error
		bufs[i], err = p.Get(t.Context(), 1000)
		require.NoError(t, err)
	}
	for _, b := range bufs {
		require.NoError(t, b.Release())
	}
	require.Equal(t, []int{1, 0}, p.idles(64))
	require.Equal(t, []int{0, 1}, p.idles(1000))
	require.EqualValues(t, 1, p.Stats().HostFrees)
}
