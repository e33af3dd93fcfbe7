package memcache

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// behind reports whether the stream has pending work.
func behind(t *testing.T, s *scriptedStream) bool {
	done, err := s.Query()
	require.NoError(t, err)
	return !done
}

// used is a freed block of own that a held stream still uses.
func used(t *testing.T, c *Cache, bytes int64, own, by *scriptedStream) Block {
	b := mustAlloc(t, c, bytes, own)
	by.busy = true
	require.NoError(t, errors.Join(b.RecordStream(by), b.Free()))
	return b
}

// TestReuseOfPendingFrees: a request that would not fit gets the block that another stream still
// uses. Its own stream waits for that one, and the host does not wait. Without the option the cache
// grows, or waits on the host in a flush.
func TestReuseOfPendingFrees(t *testing.T) {
	for _, c := range []struct {
		reuse    StreamReuse
		limit    int64 // MiB
		reused   bool
		flushes  int64
		reserved int64 // MiB
	}{
		{ReuseNever, 100, false, 1, 60},
		{ReuseNever, 200, false, 0, 120},
		{ReuseWhenFull, 100, true, 0, 60},
		{ReuseWhenFull, 200, false, 0, 120},
		{ReuseBeforeGrowth, 200, true, 0, 60},
	} {
		t.Run(fmt.Sprint(c.reuse, " ", c.limit), func(t *testing.T) {
			cache, dev := newCache(t, Config{ReuseAcrossStreams: c.reuse, MemoryLimit: c.limit * mib})
			own, by := dev.stream(1), dev.stream(2)
			b := used(t, cache, 60*mib, own, by)
			again := mustAlloc(t, cache, 60*mib, own)
			st := cache.Stats()
			require.Equal(t, c.flushes, st.NumSyncAllStreams)
			require.Equal(t, c.reserved*mib, cache.MemoryReserved())
			require.EqualValues(t, 1, st.Allocation.All.Current)
			if c.reused {
				require.Equal(t, b.Ptr(), again.Ptr())
				require.True(t, behind(t, own), "what is queued next waits for the stream that uses the memory")
				require.EqualValues(t, 1, st.NumStreamReuses)
				require.EqualValues(t, 1, st.Active.All.Current, "the free has ended")
			} else {
				require.Zero(t, st.NumStreamReuses)
				require.False(t, behind(t, own))
			}
			by.finish()
			require.False(t, behind(t, own))
			require.NoError(t, errors.Join(again.Free(), cache.check(), cache.Close()))
		})
	}
}

// TestReuseEndsTheFreeOfOneBlock: of the blocks that would serve the request, the one whose last
// event was recorded first is used, and the stream waits only for that block's users. A block that
// is too small even with its free neighbours, of the other kind of pool or of a private pool is
// left alone.
func TestReuseEndsTheFreeOfOneBlock(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
	own := dev.stream(1)
	pool, err := cache.NewPool(PoolOptions{})
	require.NoError(t, err)
	var streams []*scriptedStream
	for id := range uint64(6) {
		streams = append(streams, dev.stream(10+id))
	}
	used(t, cache, 12*mib, own, streams[0])
	used(t, cache, 512, own, streams[1])
	private, err := cache.Alloc(pool.Context(t.Context()), 80*mib, own)
	require.NoError(t, err)
	streams[2].busy = true
	require.NoError(t, errors.Join(private.RecordStream(streams[2]), private.Free()))
	// Two streams use this one, the second of which is busy later than the block after it is freed.
	first := used(t, cache, 60*mib, own, streams[3])
	second := mustAlloc(t, cache, 70*mib, own)
	streams[4].busy = true
	require.NoError(t, errors.Join(second.RecordStream(streams[4]), second.RecordStream(streams[5]), second.Free()))

	require.Equal(t, first.Ptr(), mustAlloc(t, cache, 60*mib, own).Ptr())
	require.True(t, behind(t, own))
	streams[3].finish()
	require.False(t, behind(t, own), "it waits for the streams of that block alone")
	require.Equal(t, second.Ptr(), mustAlloc(t, cache, 60*mib, own).Ptr())
	require.True(t, behind(t, own))
	streams[4].finish()
	require.False(t, behind(t, own))
	require.EqualValues(t, 2, cache.Stats().NumStreamReuses)
	require.Equal(t, 3+2, int(cache.Stats().Active.All.Current), "three frees are pending")
	for _, s := range streams {
		s.finish()
	}
	require.NoError(t, errors.Join(cache.PollFrees(), cache.check()))
	require.EqualValues(t, 2, cache.Stats().Active.All.Current)
}

// TestReuseMergesWithFreeNeighbours: the block serves the request together with its free
// neighbours.
func TestReuseMergesWithFreeNeighbours(t *testing.T) {
	for _, config := range []Config{{}, {ExpandableSegments: true}} {
		config.ReuseAcrossStreams, config.MemoryLimit = ReuseWhenFull, 20*mib
		cache, dev := newCache(t, config)
		own, by := dev.stream(1), dev.stream(2)
		a := mustAlloc(t, cache, 4*mib, own)
		b := mustAlloc(t, cache, 4*mib, own)
		rest := mustAlloc(t, cache, 12*mib-512, own)
		by.busy = true
		require.NoError(t, errors.Join(b.RecordStream(by), b.Free(), a.Free()))
		require.Equal(t, a.Ptr(), mustAlloc(t, cache, 8*mib, own).Ptr())
		require.EqualValues(t, 1, cache.Stats().NumStreamReuses)
		require.NoError(t, errors.Join(rest.Free(), cache.check()))
	}
}

// blockAt returns the block in use at an address, and the zero Block if there is none. The cache must be idle.
func blockAt(c *Cache, p device.Ptr) Block {
	for _, s := range c.shards.list() {
		for seg := range s.arena.Segments() {
			for m := seg.First(); m != nil; m = m.Next() {
				if h := handoutOf(m); m.Ptr() == p && h != nil && h.serial != 0 {
					return Block{handout: h, chunk: m, serial: h.serial, ptr: p, size: m.Size(), stream: h.user()}
				}
			}
		}
	}
	return Block{}
}

// TestReuseOfAnotherStream: free memory of one stream serves another that waits for it, and returns
// to its owner after that stream's use.
func TestReuseOfAnotherStream(t *testing.T) {
	for _, reuse := range []StreamReuse{ReuseWhenFull, ReuseBeforeGrowth} {
		cache, dev := newCache(t, Config{ReuseAcrossStreams: reuse, MemoryLimit: 100 * mib})
		owner, user, third := dev.stream(1), dev.stream(2), dev.stream(3)
		kept := mustAlloc(t, cache, 30*mib, owner)
		b := mustAlloc(t, cache, 70*mib, owner)
		require.NoError(t, b.Free())
		owner.busy = true
		got := mustAlloc(t, cache, 65*mib, user)
		require.Equal(t, b.Ptr(), got.Ptr())
		require.EqualValues(t, 2, got.StreamID())
		require.True(t, behind(t, user), "it waits for what the owner has queued")
		require.False(t, behind(t, third))
		owner.finish()
		require.False(t, behind(t, user))

		// For its owner the user is recorded on the block, and EraseStream does not undo that.
		require.NoError(t, errors.Join(got.RecordStream(user), got.EraseStream(user)))
		found := blockAt(cache, got.Ptr())
		require.Equal(t, got, found)
		require.NoError(t, errors.Join(found.RecordStream(third), found.EraseStream(third), found.EraseStream(user)))
		user.busy = true
		require.NoError(t, got.Free())
		require.EqualValues(t, 2, cache.Stats().Active.All.Current)
		require.ErrorIs(t, got.Free(), ErrFreed)
		require.NoError(t, cache.check())
		again := mustAlloc(t, cache, 65*mib, owner)
		require.Equal(t, b.Ptr(), again.Ptr())
		require.Equal(t, again, blockAt(cache, again.Ptr()))
		require.True(t, behind(t, owner), "the owner waits for the user")
		user.finish()
		require.False(t, behind(t, owner))
		require.EqualValues(t, 2, cache.Stats().NumStreamReuses)
		require.Zero(t, cache.Stats().NumSyncAllStreams)
		require.NoError(t, errors.Join(again.Free(), kept.Free(), cache.check(), cache.EmptyCache(t.Context()), cache.Close()))
	}
}

// TestReuseTakesTheSmallestOfOthers, so that large chunks stay whole for large requests.
func TestReuseTakesTheSmallestOfOthers(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
	var blocks []Block
	for i, size := range []int64{50, 30, 12, 40} {
		blocks = append(blocks, mustAlloc(t, cache, size*mib, dev.stream(1+uint64(i))))
	}
	for _, b := range blocks {
		require.NoError(t, b.Free())
	}
	require.Equal(t, blocks[1].Ptr(), mustAlloc(t, cache, 25*mib, dev.stream(9)).Ptr(), "of 30 MiB")
}

// TestReuseWhereAFlushDoesNotHelp: the free memory is a part of another stream's segments, which
// can't be returned. Only reuse across streams serves the request; without it the request is out of
// memory.
func TestReuseWhereAFlushDoesNotHelp(t *testing.T) {
	for _, reuse := range []StreamReuse{ReuseNever, ReuseWhenFull} {
		cache, dev := newCache(t, Config{ReuseAcrossStreams: reuse, MemoryLimit: 20 * mib})
		owner, user := dev.stream(1), dev.stream(2)
		kept := mustAlloc(t, cache, 2*mib, owner)
		b := mustAlloc(t, cache, 8*mib, owner)
		require.NoError(t, b.Free())
		got, err := cache.Alloc(t.Context(), 5*mib, user)
		if reuse == ReuseNever {
			require.ErrorIs(t, err, ErrOutOfMemory)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, b.Ptr(), got.Ptr())
		require.Zero(t, cache.Stats().NumAllocRetries)
		require.NoError(t, errors.Join(got.Free(), kept.Free(), cache.check()))
	}
}

// TestReuseKeepsLargeBlocksWhole: MaxSplitSizeMB also applies to pending blocks.
func TestReuseKeepsLargeBlocksWhole(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth, MaxSplitSizeMB: 20})
	own, by := dev.stream(1), dev.stream(2)
	b := used(t, cache, 60*mib, own, by)
	mustAlloc(t, cache, 12*mib, own)
	mustAlloc(t, cache, 30*mib, own)
	require.EqualValues(t, 3, cache.Stats().Active.All.Current, "the free goes on waiting")
	require.Equal(t, b.Ptr(), mustAlloc(t, cache, 50*mib, own).Ptr())
}

// TestReuseWhenFullTakesWhatOthersWaitFor: the owner waits for a third stream, and the request's
// stream for the owner. While there is free memory no stream waits for another's requests.
func TestReuseWhenFullTakesWhatOthersWaitFor(t *testing.T) {
	roomy, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
	owner, by, user := dev.stream(1), dev.stream(2), dev.stream(3)
	used(t, roomy, 80*mib, owner, by)
	mustAlloc(t, roomy, 80*mib, user)
	require.False(t, behind(t, owner))
	require.Zero(t, roomy.Stats().NumStreamReuses)

	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseWhenFull, MemoryLimit: 100 * mib})
	owner, by, user = dev.stream(1), dev.stream(2), dev.stream(3)
	b := used(t, cache, 80*mib, owner, by)
	got := mustAlloc(t, cache, 80*mib, user)
	require.Equal(t, b.Ptr(), got.Ptr())
	require.True(t, behind(t, owner))
	require.True(t, behind(t, user))
	require.Zero(t, cache.Stats().NumSyncAllStreams)
	by.finish()
	require.False(t, behind(t, user))
	require.NoError(t, errors.Join(got.Free(), cache.check(), cache.Close()))
}

// TestReuseOfClosedStreams: there is no work to wait for.
func TestReuseOfClosedStreams(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseWhenFull, MemoryLimit: 20 * mib})
	owner, user := dev.stream(1), dev.stream(2)
	kept := mustAlloc(t, cache, 2*mib, owner)
	require.NoError(t, mustAlloc(t, cache, 8*mib, owner).Free())
	owner.busy = true
	owner.closed.Store(true)
	got := mustAlloc(t, cache, 5*mib, user)
	require.False(t, behind(t, user))
	user.closed.Store(true)
	require.NoError(t, errors.Join(got.Free(), kept.Free(), cache.check(), cache.Close()))
}

// failingStream fails the calls that order streams.
type failingStream struct {
	*scriptedStream
	record, wait error
}

func (s *failingStream) Record(e device.Event) error {
	if s.record != nil {
		return s.record
	}
	return s.scriptedStream.Record(e)
}

func (s *failingStream) Wait(e device.Event) error {
	if s.wait != nil {
		return s.wait
	}
	return s.scriptedStream.Wait(e)
}

// TestReuseBesideAStreamThatCloses: a closing stream refuses to wait, and another stream's request
// waits on the host instead.
func TestReuseBesideAStreamThatCloses(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseWhenFull, MemoryLimit: 100 * mib})
	owner, by, user := &failingStream{scriptedStream: dev.stream(1), wait: device.ErrClosed}, dev.stream(2), dev.stream(3)
	b := mustAlloc(t, cache, 80*mib, owner)
	by.busy = true
	require.NoError(t, errors.Join(b.RecordStream(by), b.Free()))
	got := mustAlloc(t, cache, 80*mib, user)
	require.False(t, behind(t, by))
	require.Zero(t, cache.Stats().NumStreamReuses)
	require.NoError(t, errors.Join(got.Free(), cache.check(), cache.Close()))
}

// TestReuseThatFails: a stream that can't wait gets no memory, and no memory is lost.
func TestReuseThatFails(t *testing.T) {
	broken := errors.New("the device is broken")
	for _, reuse := range []StreamReuse{ReuseWhenFull, ReuseBeforeGrowth} {
		cache, dev := newCache(t, Config{ReuseAcrossStreams: reuse, MemoryLimit: 100 * mib})
		owner, user := dev.stream(1), &failingStream{scriptedStream: dev.stream(2), wait: broken}
		b := mustAlloc(t, cache, 80*mib, owner)
		require.NoError(t, b.Free())
		_, err := cache.Alloc(t.Context(), 80*mib, user)
		require.ErrorIs(t, err, broken)
		require.Zero(t, cache.MemoryAllocated())
		require.NoError(t, errors.Join(cache.PollFrees(), cache.check()))
		require.Equal(t, b.Ptr(), mustAlloc(t, cache, 80*mib, owner).Ptr())
		require.Zero(t, cache.Stats().NumStreamReuses)

		// The same of a free that is pending: it waits on.
		cache, dev = newCache(t, Config{ReuseAcrossStreams: reuse, MemoryLimit: 100 * mib})
		by := dev.stream(2)
		user = &failingStream{scriptedStream: dev.stream(1), wait: broken}
		b = mustAlloc(t, cache, 80*mib, user)
		by.busy = true
		require.NoError(t, errors.Join(b.RecordStream(by), b.Free()))
		_, err = cache.Alloc(t.Context(), 80*mib, user)
		require.ErrorIs(t, err, broken)
		require.EqualValues(t, 1, cache.Stats().Active.All.Current)
		require.NoError(t, cache.check())
		user.wait = nil
		require.Equal(t, b.Ptr(), mustAlloc(t, cache, 80*mib, user).Ptr())
		require.NoError(t, cache.check())
	}
}

// TestReuseLeavesPrivatePoolsAlone: their memory serves only their own requests.
func TestReuseLeavesPrivatePoolsAlone(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
	owner, user := dev.stream(1), dev.stream(2)
	pool, err := cache.NewPool(PoolOptions{})
	require.NoError(t, err)
	in := pool.Context(t.Context())
	private, err := cache.Alloc(in, 30*mib, owner)
	require.NoError(t, err)
	shared := mustAlloc(t, cache, 30*mib, owner)
	require.NoError(t, errors.Join(private.Free(), shared.Free()))
	got, err := cache.Alloc(in, 30*mib, user)
	require.NoError(t, err)
	require.NotContains(t, []device.Ptr{private.Ptr(), shared.Ptr()}, got.Ptr())
	require.Equal(t, shared.Ptr(), mustAlloc(t, cache, 30*mib, user).Ptr())
	require.NotEqual(t, private.Ptr(), mustAlloc(t, cache, 30*mib, user).Ptr())
}

func TestReuseOptions(t *testing.T) {
	for _, reuse := range []StreamReuse{ReuseNever, ReuseWhenFull, ReuseBeforeGrowth} {
		c, err := ParseConfig(Config{ReuseAcrossStreams: reuse}.Options())
		require.NoError(t, err)
		require.Equal(t, reuse, c.ReuseAcrossStreams)
	}
	_, err := ParseConfig("reuse_across_streams:True")
	require.ErrorContains(t, err, "want never, when_full, before_growth")
	_, err = ParseConfig("reuse_across_streams:when_full,exact:True")
	require.ErrorContains(t, err, "ReuseAcrossStreams is when_full")
	_, err = New(newScripted(1<<40), Config{ReuseAcrossStreams: 3})
	require.ErrorContains(t, err, "ReuseAcrossStreams is StreamReuse(3)")
	require.ErrorIs(t, err, ErrInvalid)
	// It changes while the cache runs.
	cache, dev := newCache(t, Config{})
	require.NoError(t, mustAlloc(t, cache, 30*mib, dev.stream(1)).Free())
	require.NoError(t, cache.SetConfig(t.Context(), Config{ReuseAcrossStreams: ReuseBeforeGrowth}))
	mustAlloc(t, cache, 30*mib, dev.stream(2))
	require.EqualValues(t, 1, cache.Stats().NumStreamReuses)
}

// TestReuseOfNeighbours: adjacent pending blocks, with the free memory between and beside them,
// serve a request that none of them could serve alone. Of several such runs the one that ends first
// is used, without blocks that it does not need.
func TestReuseOfNeighbours(t *testing.T) {
	cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
	own := dev.stream(1)
	whole := mustAlloc(t, cache, 64*mib, own) // of one segment
	require.NoError(t, whole.Free())
	var blocks []Block
	var streams []*scriptedStream
	for i := range 8 {
		blocks = append(blocks, mustAlloc(t, cache, 8*mib, own))
		streams = append(streams, dev.stream(uint64(10+i)))
	}
	pend := func(i int) {
		streams[i].busy = true
		require.NoError(t, errors.Join(blocks[i].RecordStream(streams[i]), blocks[i].Free()))
	}
	//	0 used, 1 pending, 2 free, 3 pending, 4 used, 5 to 7 pending, the last to be freed
	for _, i := range []int{1, 3, 7, 6, 5} {
		pend(i)
	}
	require.NoError(t, blocks[2].Free())
	got := mustAlloc(t, cache, 24*mib, own)
	require.Equal(t, blocks[1].Ptr(), got.Ptr(), "1 to 3")
	first := got
	require.True(t, behind(t, own))
	streams[1].finish()
	require.True(t, behind(t, own))
	streams[3].finish()
	require.False(t, behind(t, own), "it waits for those two alone")
	got = mustAlloc(t, cache, 16*mib, own)
	require.Equal(t, blocks[6].Ptr(), got.Ptr(), "6 and 7, which were freed before 5")
	streams[7].finish()
	streams[6].finish()
	require.False(t, behind(t, own))
	require.EqualValues(t, 64*mib, cache.MemoryReserved())
	require.EqualValues(t, 2, cache.Stats().NumStreamReuses)
	// 0 and the 1 to 3 of before, freed in that order: the second alone is enough.
	pend(0)
	streams[4].busy = true
	require.NoError(t, errors.Join(first.RecordStream(streams[4]), first.Free()))
	again := mustAlloc(t, cache, 24*mib, own)
	require.Equal(t, first.Ptr(), again.Ptr())
	require.True(t, behind(t, own))
	streams[4].finish()
	require.False(t, behind(t, own))
	got = mustAlloc(t, cache, 16*mib, own)
	require.EqualValues(t, 80*mib, cache.MemoryReserved(), "5 alone is too little")
	require.NoError(t, got.Free())
	streams[5].finish()
	streams[0].finish()
	require.NoError(t, errors.Join(cache.PollFrees(), cache.check()))
}

// TestReuseIsTheSameEachTime: among equally good runs the choice is always the same.
func TestReuseIsTheSameEachTime(t *testing.T) {
	for range 20 {
		cache, dev := newCache(t, Config{ReuseAcrossStreams: ReuseBeforeGrowth})
		own := dev.stream(1)
		whole := mustAlloc(t, cache, 32*mib, own)
		require.NoError(t, whole.Free())
		var blocks []Block
		for range 4 {
			blocks = append(blocks, mustAlloc(t, cache, 8*mib, own))
		}
		for i, at := range []int{0, 2, 1} { // 0 and 1 end when 1 and 2 do
			by := dev.stream(uint64(10 + i))
			by.busy = true
			require.NoError(t, errors.Join(blocks[at].RecordStream(by), blocks[at].Free()))
		}
		require.Equal(t, blocks[0].Ptr(), mustAlloc(t, cache, 16*mib, own).Ptr())
	}
}
