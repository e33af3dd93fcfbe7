package memcache

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

func newPool(t testing.TB, c *Cache, options PoolOptions) (*Pool, context.Context) {
	p, err := c.NewPool(options)
	require.NoError(t, err)
	return p, p.Context(context.Background())
}

func allocIn(t testing.TB, ctx context.Context, c *Cache, bytes int64, s device.Stream) Block {
	b, err := c.Alloc(ctx, bytes, s)
	require.NoError(t, err)
	require.NoError(t, c.check())
	return b
}

// TestPoolsShareNothing: each pool has its own segments on each stream, and a freed block returns
// to its pool.
func TestPoolsShareNothing(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		dev := newScripted(1 << 30)
		c, err := New(dev, Config{ExpandableSegments: expandable})
		require.NoError(t, err)
		s, bg := dev.stream(1), context.Background()
		p, inP := newPool(t, c, PoolOptions{})
		q, inQ := newPool(t, c, PoolOptions{})
		require.Equal(t, []PoolID{{0, 1}, {0, 2}}, []PoolID{p.ID(), q.ID()})
		pools := []context.Context{bg, inP, inQ}
		var first [3]Block
		for i, ctx := range pools {
			first[i] = allocIn(t, ctx, c, 3<<20, s)
		}
		got := map[PoolID]device.Ptr{}
		for _, seg := range c.Snapshot().Segments {
			require.EqualValues(t, 20<<20, seg.TotalSize)
			got[seg.PoolID] = seg.Address
		}
		require.Equal(t, map[PoolID]device.Ptr{{}: first[0].ptr, {0, 1}: first[1].ptr, {0, 2}: first[2].ptr}, got)
		for _, b := range first {
			require.NoError(t, b.Free()) // without the pool's context
		}
		for _, i := range []int{2, 0, 1} {
			require.Equal(t, first[i].ptr, allocIn(t, pools[i], c, 3<<20, s).ptr)
		}
		allocIn(t, inP, c, 3<<20, dev.stream(2))
		require.EqualValues(t, 80<<20, c.MemoryReserved())
		require.EqualValues(t, 12<<20, c.MemoryAllocated(), "the statistics are over all pools")
	}
}

func TestPoolContexts(t *testing.T) {
	c, dev := newCache(t, Config{})
	other, otherDev := newCache(t, Config{})
	s, otherStream := dev.stream(1), otherDev.stream(1)
	p, inP := newPool(t, c, PoolOptions{})
	q, _ := newPool(t, c, PoolOptions{})
	o, _ := newPool(t, other, PoolOptions{})
	of := func(ctx context.Context, c *Cache, s device.Stream) *placement.Pool {
		return allocIn(t, ctx, c, 1, s).handout.chunk.Segment().Pool()
	}
	both := o.Context(inP)
	require.Same(t, &p.place, of(both, c, s))
	require.Same(t, &o.place, of(both, other, otherStream))
	require.Nil(t, of(inP, other, otherStream), "a pool of another cache is passed over")
	require.Same(t, &q.place, of(q.Context(both), c, s), "the innermost counts")
	require.Same(t, &o.place, of(q.Context(both), other, otherStream))
	require.Same(t, &p.place, of(p.Context(q.Context(both)), c, s))
	require.Nil(t, of(c.WithoutPool(both), c, s))
	require.Same(t, &o.place, of(c.WithoutPool(both), other, otherStream))
	require.Same(t, &p.place, of((*Pool)(nil).Context(inP), c, s), "the nil pool changes nothing")
	require.Nil(t, of((*Pool)(nil).Context(context.Background()), c, s))

	// Scopes and pools pass each other.
	ctx, scope := c.Scope(both, "step")
	require.Same(t, &p.place, of(ctx, c, s))
	require.Same(t, &q.place, of(q.Context(ctx), c, s))
	require.Nil(t, of(c.WithoutPool(ctx), c, s))
	require.EqualValues(t, 3, scope.Own().Allocations)
	scope.End()
}

// TestPoolRelease: a pool's memory is returned to the driver after its release, and not before.
func TestPoolRelease(t *testing.T) {
	for _, expandable := range []bool{false, true} {
		c, dev := newCache(t, Config{ExpandableSegments: expandable})
		s, bg := dev.stream(1), context.Background()
		p, ctx := newPool(t, c, PoolOptions{})
		q, inQ := newPool(t, c, PoolOptions{})
		used, free, small := allocIn(t, ctx, c, 20<<20, s), allocIn(t, ctx, c, 20<<20, s), allocIn(t, ctx, c, 1, s)
		require.NoError(t, errors.Join(free.Free(), small.Free(), allocIn(t, inQ, c, 20<<20, s).Free(), mustAlloc(t, c, 20<<20, s).Free()))
		reserved := c.MemoryReserved

		require.NoError(t, c.EmptyCache(bg))
		require.EqualValues(t, 62<<20, reserved(), "the default pool's alone")

		require.NoError(t, errors.Join(p.Release(), p.Release(), q.Release()))
		require.EqualValues(t, 62<<20, reserved())
		_, err := c.Alloc(ctx, 512, s)
		require.ErrorIs(t, err, ErrReleased)
		require.ErrorContains(t, err, "memcache: Alloc of 512 bytes: private pool was released: private pool 1: ")
		mustAlloc(t, c, 20<<20, s)
		dev.calls = nil
		require.NoError(t, p.EmptyCache(bg))
		require.EqualValues(t, 60<<20, reserved(), "the block in use, the other pool, the default pool")
		require.Len(t, dev.calls, 2)
		require.Contains(t, dev.calls[0], " 2097152", "the small ones first")

		require.NoError(t, used.Free())
		require.EqualValues(t, 60<<20, reserved())
		require.NoError(t, c.EmptyCache(bg))
		require.EqualValues(t, 20<<20, reserved(), "what is in use")
		require.Empty(t, slices.Collect(c.shards.list()[0].arena.Pools()))
		require.NoError(t, c.check())
	}
}

// TestReleaseDuringARequest: a pool that is released while a request of it waits for memory gets
// none any more, because with Exact the flush in the middle has found it without memory, and later
// ones skip it.
func TestReleaseDuringARequest(t *testing.T) {
	for _, config := range []Config{{}, {Exact: true}, {ExpandableSegments: true, Exact: true}} {
		c, dev := newCache(t, config)
		p, ctx := newPool(t, c, PoolOptions{})
		dev.gate = func(_ context.Context, call string) error {
			if call != "Alloc" && call != "Map" {
				return nil
			}
			dev.gate = nil
			require.NoError(t, p.Release())
			return &device.Error{Op: call, Device: "scripted", Err: device.ErrOutOfMemory}
		}
		b, err := c.Alloc(ctx, 512, dev.stream(1))
		require.ErrorIs(t, err, ErrReleased, "%+v: %v", config, b)
		require.NoError(t, c.EmptyCache(t.Context()))
		require.Zero(t, c.MemoryReserved())
	}
}

// TestReleaseOrder: a flush returns the default pool's segments, large before small, then those of
// the released pools, in their order, small before large.
func TestReleaseOrder(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	type pool struct {
		p   *Pool
		ctx context.Context
	}
	pools := []pool{{nil, context.Background()}}
	for range 4 {
		p, ctx := newPool(t, c, PoolOptions{})
		pools = append(pools, pool{p, ctx})
	}
	blocks := map[int][2]Block{}
	for _, i := range []int{3, 1, 0, 4, 2} {
		blocks[i] = [2]Block{allocIn(t, pools[i].ctx, c, 1, s), allocIn(t, pools[i].ctx, c, 20<<20, s)}
	}
	for _, i := range []int{4, 2, 3} {
		require.NoError(t, pools[i].p.Release())
	}
	var want []string
	for _, i := range []int{0, 2, 3, 4} {
		order := []int{0, 1}
		if i == 0 {
			order = []int{1, 0}
		}
		for _, k := range order {
			b := blocks[i][k]
			want = append(want, "segment_free "+fmt.Sprint(b.ptr)+" "+fmt.Sprint(dev.live[b.ptr]))
		}
	}
	for _, b := range blocks {
		require.NoError(t, errors.Join(b[0].Free(), b[1].Free()))
	}
	dev.calls = nil
	require.NoError(t, c.EmptyCache(context.Background()))
	require.Equal(t, want, dev.calls)
}

func TestUseOnOOM(t *testing.T) {
	const limit = 0.25 // 256 MiB
	for _, test := range []struct {
		name          string
		options       PoolOptions
		config        Config
		free, request int64
		stream        uint64
		in            bool // the request is another pool's
		served        bool
	}{
		{name: "lends", options: PoolOptions{UseOnOOM: true}, free: 200 << 20, request: 100 << 20, served: true},
		{name: "expandable", options: PoolOptions{UseOnOOM: true}, config: Config{ExpandableSegments: true}, free: 200 << 20, request: 100 << 20, served: true},
		{name: "expandable, exact", options: PoolOptions{UseOnOOM: true}, config: Config{ExpandableSegments: true, Exact: true}, free: 200 << 20, request: 100 << 20},
		{name: "exact", options: PoolOptions{UseOnOOM: true}, config: Config{Exact: true}, free: 200 << 20, request: 100 << 20, served: true},
		{name: "does not", free: 200 << 20, request: 100 << 20},
		{name: "is not grown", options: PoolOptions{UseOnOOM: true}, free: 190 << 20, request: 200 << 20},
		{name: "other stream", options: PoolOptions{UseOnOOM: true}, free: 200 << 20, request: 100 << 20, stream: 2},
		{name: "default requests only", options: PoolOptions{UseOnOOM: true}, free: 200 << 20, request: 100 << 20, in: true},
		{name: "whole", options: PoolOptions{UseOnOOM: true, NoSplit: true}, free: 200 << 20, request: 100 << 20, served: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.config.PerProcessMemoryFraction = limit
			c, dev := newCache(t, test.config)
			s, ctx := dev.stream(1), context.Background()
			_, inPool := newPool(t, c, test.options)
			require.NoError(t, allocIn(t, inPool, c, test.free, s).Free())
			require.NoError(t, mustAlloc(t, c, 30<<20, s).Free()) // a flush would return it
			if test.stream != 0 {
				s = dev.stream(test.stream)
			}
			if test.in {
				_, ctx = newPool(t, c, PoolOptions{})
			}
			calls := len(dev.calls)
			b, err := c.Alloc(ctx, test.request, s)
			require.NoError(t, c.check())
			st := c.Stats()
			if !test.served {
				var oom *OutOfMemoryError
				require.ErrorAs(t, err, &oom)
				require.GreaterOrEqual(t, oom.OtherPools, test.free)
				require.ErrorContains(t, err, "MiB of other pools")
				require.EqualValues(t, 1, st.NumSyncAllStreams)
				return
			}
			require.NoError(t, err)
			require.Len(t, dev.calls, calls, "before anything is flushed")
			require.Zero(t, st.NumAllocRetries)
			if test.options.NoSplit {
				require.Equal(t, test.free, b.Size())
			} else {
				require.Equal(t, test.request, b.Size())
			}
			require.NoError(t, b.Free())
			require.Equal(t, b.ptr, allocIn(t, inPool, c, test.free, dev.stream(1)).ptr, "it went back to its pool")
		})
	}
}

// TestUseOnOOMEndsWithRelease: a released pool lends nothing, and its memory is flushed instead. A
// lent block survives the release.
func TestUseOnOOMEndsWithRelease(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.25})
	s := dev.stream(1)
	p, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.NoError(t, allocIn(t, ctx, c, 200<<20, s).Free())
	lent := mustAlloc(t, c, 90<<20, s)
	require.Same(t, &p.place, lent.handout.chunk.Segment().Pool())
	require.NoError(t, p.Release())
	_, err := c.Alloc(context.Background(), 90<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.NoError(t, lent.Free())
	mustAlloc(t, c, 90<<20, s)
	require.EqualValues(t, 90<<20, c.MemoryReserved())
}

// TestUseOnOOMBesideHitsConcurrentSafe: lending reads a stream's memory while other goroutines
// allocate and free there.
func TestUseOnOOMBesideHitsConcurrentSafe(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.25})
	s := dev.stream(1)
	_, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.NoError(t, allocIn(t, ctx, c, 200<<20, s).Free())
	end, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			b, err := c.Alloc(context.Background(), 512, s)
			if err == nil {
				err = b.Free()
			}
			select {
			case <-end:
				done <- err
				return
			default:
			}
			if err != nil {
				done <- err
				return
			}
		}
	}()
	for range 1000 {
		lent := mustAlloc(t, c, 90<<20, s)
		require.NotNil(t, lent.handout.chunk.Segment().Pool())
		require.NoError(t, lent.Free())
	}
	close(end)
	require.NoError(t, <-done)
	require.NoError(t, c.check())
}

// TestUseOnOOMGrowsTheDefaultPool: a request that no pool can serve belongs to the default pool in
// every later step.
func TestUseOnOOMGrowsTheDefaultPool(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.25})
	s := dev.stream(1)
	_, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
	require.NoError(t, errors.Join(allocIn(t, ctx, c, 20<<20, s).Free(), mustAlloc(t, c, 150<<20, s).Free()))
	require.Nil(t, allocIn(t, context.Background(), c, 200<<20, s).handout.chunk.Segment().Pool())
}

// TestUseOnOOMAfterTheFlush: the flush may complete a block that can be lent. With Exact it is not
// searched for, as in PyTorch.
func TestUseOnOOMAfterTheFlush(t *testing.T) {
	for _, exact := range []bool{false, true} {
		c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.25, Exact: exact})
		s, other := dev.stream(1), dev.stream(2)
		p, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
		b := allocIn(t, ctx, c, 200<<20, s)
		other.busy = true
		require.NoError(t, errors.Join(b.RecordStream(other), b.Free()))
		lent, err := c.Alloc(context.Background(), 100<<20, s)
		if exact {
			require.ErrorIs(t, err, ErrOutOfMemory)
			continue
		}
		require.NoError(t, err)
		require.Same(t, &p.place, lent.handout.chunk.Segment().Pool())
	}
}

func TestNoSplit(t *testing.T) {
	for _, test := range []struct{ request, block, segment int64 }{
		{1, 2 << 20, 2 << 20}, {1 << 20, 2 << 20, 2 << 20}, {3 << 20, 20 << 20, 20 << 20}, {12<<20 + 1, 14 << 20, 14 << 20},
	} {
		c, dev := newCache(t, Config{})
		s := dev.stream(1)
		_, ctx := newPool(t, c, PoolOptions{NoSplit: true})
		b := allocIn(t, ctx, c, test.request, s)
		require.Equal(t, test.block, b.Size())
		require.Equal(t, test.block, c.MemoryAllocated())
		require.Equal(t, test.segment, c.MemoryReserved())
		require.NoError(t, b.Free())
		require.Equal(t, test.block, allocIn(t, ctx, c, test.request, s).Size(), "from the free ones, too")
		require.Less(t, mustAlloc(t, c, 1, s).Size(), int64(1<<20))
	}
}

// TestPoolRunsOutOfMemory: the request of a private pool flushes the default pool and waits for
// recorded blocks; free segments of other pools stay.
func TestPoolRunsOutOfMemory(t *testing.T) {
	c, dev := newCache(t, Config{PerProcessMemoryFraction: 0.25})
	s, other := dev.stream(1), dev.stream(2)
	_, ctx := newPool(t, c, PoolOptions{})
	_, inQ := newPool(t, c, PoolOptions{})
	allocIn(t, inQ, c, 3<<20, s)
	require.NoError(t, allocIn(t, inQ, c, 30<<20, s).Free())
	b := mustAlloc(t, c, 150<<20, s)
	other.busy = true
	require.NoError(t, errors.Join(b.RecordStream(other), b.Free()))
	allocIn(t, ctx, c, 200<<20, s)
	require.Equal(t, []int64{1, 0}, []int64{c.Stats().NumAllocRetries, c.Stats().NumOOMs})
	_, err := c.Alloc(ctx, 100<<20, s)
	var oom *OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Equal(t, []int64{47 << 20, 250 << 20, 203 << 20, 0}, []int64{oom.OtherPools, oom.Reserved, oom.Allocated, oom.Largest})
	_, err = c.Alloc(inQ, 100<<20, s)
	require.ErrorAs(t, err, &oom)
	require.EqualValues(t, 17<<20, oom.Largest, "of the request's pool, which has returned its whole segment")
	require.EqualValues(t, 220<<20, oom.Reserved)
}

// TestPoolsDontStopPolling: a recorded block becomes free while a pool is used, in the pool and
// outside.
func TestPoolsDontStopPolling(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, other := dev.stream(1), dev.stream(2)
	_, inPool := newPool(t, c, PoolOptions{})
	for _, ctx := range []context.Context{inPool, context.Background()} {
		b := allocIn(t, ctx, c, 3<<20, s)
		other.busy = true
		require.NoError(t, errors.Join(b.RecordStream(other), b.Free()))
		require.NotEqual(t, b.ptr, allocIn(t, ctx, c, 3<<20, s).ptr)
		other.finish()
		require.Equal(t, b.ptr, allocIn(t, ctx, c, 3<<20, s).ptr)
	}
}

// TestCollectionPassesOverPools: neither the segments nor the requests of a pool count.
func TestCollectionPassesOverPools(t *testing.T) {
	c, dev := newCache(t, Config{GarbageCollectionThreshold: 0.1, PerProcessMemoryFraction: 0.5})
	s := dev.stream(1)
	_, ctx := newPool(t, c, PoolOptions{})
	require.NoError(t, allocIn(t, ctx, c, 100<<20, s).Free())
	before := c.shards.gcClock[placement.Large].Load()
	allocIn(t, ctx, c, 110<<20, s)
	require.Equal(t, before, c.shards.gcClock[placement.Large].Load())
	mustAlloc(t, c, 120<<20, s)
	require.EqualValues(t, 330<<20, c.MemoryReserved())
	require.Zero(t, c.Stats().NumDeviceFree)
}

// TestAdoptionStaysInThePool: a closed stream's segments pass to other streams, each in its pool.
func TestAdoptionStaysInThePool(t *testing.T) {
	c, dev := newCache(t, Config{})
	s, next := dev.stream(1), dev.stream(2)
	_, ctx := newPool(t, c, PoolOptions{})
	b, d := allocIn(t, ctx, c, 3<<20, s), mustAlloc(t, c, 3<<20, s)
	require.NoError(t, errors.Join(b.Free(), d.Free()))
	s.closed.Store(true)
	require.Equal(t, d.ptr, allocIn(t, context.Background(), c, 3<<20, next).ptr)
	require.Equal(t, b.ptr, allocIn(t, ctx, c, 3<<20, next).ptr)
	require.EqualValues(t, 40<<20, c.MemoryReserved())
	require.Len(t, c.shards.list(), 1)
}

func TestBadPools(t *testing.T) {
	c, dev := newCache(t, Config{})
	var none *Pool
	require.ErrorIs(t, none.Release(), ErrInvalid)
	require.ErrorIs(t, none.EmptyCache(context.Background()), ErrInvalid)
	require.Zero(t, none.ID())
	require.Equal(t, "default pool", none.String())
	p, ctx := newPool(t, c, PoolOptions{UseOnOOM: true})
	b := allocIn(t, ctx, c, 1, dev.stream(1))
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, p.Release())
	require.Empty(t, c.grower.lending.all(), "the cache forgets it")
	require.ErrorIs(t, p.EmptyCache(canceled), context.Canceled)
	require.NoError(t, b.Free())
	q, inQ := newPool(t, c, PoolOptions{})
	allocIn(t, inQ, c, 1, dev.stream(1))
	require.ErrorContains(t, c.Close(), "1, of 512 bytes")
	require.Empty(t, dev.live)
	require.NoError(t, q.Release())
	require.ErrorIs(t, q.EmptyCache(context.Background()), ErrClosed)
	_, err := c.Alloc(p.Context(context.Background()), 1, dev.stream(1))
	require.ErrorIs(t, err, ErrReleased)
	_, err = c.NewPool(PoolOptions{})
	require.ErrorIs(t, err, ErrClosed)
}

// TestPoolsConcurrentSafe creates, uses and releases pools on several goroutines, on shared
// streams.
func TestPoolsConcurrentSafe(t *testing.T) {
	dev := newScripted(1 << 30)
	c, err := New(dev, Config{PerProcessMemoryFraction: 0.03})
	require.NoError(t, err)
	streams := []device.Stream{dev.stream(1), dev.stream(2)}
	shared, inShared := newPool(t, c, PoolOptions{UseOnOOM: true})
	var wg sync.WaitGroup
	for id := range uint64(4) {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(id, 0))
			for range 100 {
				p, err := c.NewPool(PoolOptions{UseOnOOM: r.IntN(2) == 0, NoSplit: r.IntN(2) == 0})
				if err != nil {
					t.Error(err)
					return
				}
				var late sync.WaitGroup
				ctxs := []context.Context{p.Context(context.Background()), inShared, context.Background()}
				for range 10 {
					b, err := c.Alloc(ctxs[r.IntN(3)], 1+r.Int64N(3<<20), streams[r.IntN(2)])
					if err != nil && !errors.Is(err, ErrOutOfMemory) {
						t.Error(err)
					}
					late.Go(func() { err = errors.Join(err, b.Free()) })
				}
				if err := errors.Join(p.Release(), p.EmptyCache(context.Background())); err != nil {
					t.Error(err)
				}
				late.Wait()
			}
		})
	}
	wg.Wait()
	require.NoError(t, shared.Release())
	require.NoError(t, c.EmptyCache(context.Background()))
	require.NoError(t, c.check())
	require.Zero(t, c.MemoryReserved())
	require.NoError(t, c.Close())
}
