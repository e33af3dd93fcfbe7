package memcache

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
)

// cachedIn sums a snapshot's free memory that counts for Config.MaxCachedBytes, and the returnable
// part of it.
func cachedIn(s Snapshot, granule map[string]int64, counts func(PoolID) bool) (cached, releasable int64) {
	for _, seg := range s.Segments {
		if !counts(seg.PoolID) {
			continue
		}
		cached += seg.TotalSize - seg.ActiveSize
		for _, b := range seg.Blocks {
			switch n := granule[seg.Pool]; {
			case b.State != BlockInactive:
			case !seg.Expandable:
				if b.Size == seg.TotalSize {
					releasable += b.Size
				}
			default:
				at := int64(b.Address - seg.Address)
				from, to := (at+n-1)/n*n, (at+b.Size)/n*n
				releasable += max(to-from, 0)
			}
		}
	}
	return cached, releasable
}

// largestGone returns the largest segment that is in before and not in after.
func largestGone(before, after Snapshot) (bytes int64) {
	kept := make(map[device.Ptr]bool)
	for _, s := range after.Segments {
		kept[s.Address] = true
	}
	for _, s := range before.Segments {
		if !kept[s.Address] {
			bytes = max(bytes, s.TotalSize)
		}
	}
	return bytes
}

// TestMaxCachedBytes: after each call of a random program at most the bound is free, or nothing is
// returnable; and without the last segment, or granule, that was returned it would be more.
func TestMaxCachedBytes(t *testing.T) {
	const most = 48 * mib
	for _, config := range []Config{{}, {ExpandableSegments: true}, {Exact: true}, {MaxSplitSizeMB: 20}, {ReuseAcrossStreams: ReuseBeforeGrowth}} {
		config.MaxCachedBytes = most
		seed := uint64(time.Now().UnixNano())
		t.Logf("%s, seed %d", config.Options(), seed)
		r := rand.New(rand.NewPCG(seed, 1))
		c, dev := newCache(t, config)
		p, inPool := newPool(t, c, PoolOptions{})
		streams := []*scriptedStream{dev.stream(1), dev.stream(2)}
		var held []Block
		trims, frees := 0, int64(0)
		counts := func(id PoolID) bool { return id != p.ID() }
		for range 600 {
			before := c.Snapshot()
			if len(held) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(held))
				if r.IntN(4) == 0 {
					require.NoError(t, held[i].RecordStream(streams[r.IntN(2)]))
				}
				require.NoError(t, held[i].Free())
				held = append(held[:i], held[i+1:]...)
			} else {
				ctx := context.Background()
				if r.IntN(8) == 0 {
					ctx = inPool
				}
				b, err := c.Alloc(ctx, 1+r.Int64N(1<<(10+r.IntN(17))), streams[r.IntN(2)])
				require.NoError(t, err)
				held = append(held, b)
			}
			require.NoError(t, c.check())
			after := c.Snapshot()
			cached, releasable := cachedIn(after, map[string]int64{"small": 2 * mib, "large": 20 * mib}, counts)
			require.True(t, cached <= most || releasable == 0, "%d cached, of which %d could go back", cached, releasable)
			gone := largestGone(before, after)
			if config.ExpandableSegments {
				gone = 20 * mib
			}
			if now := c.Stats().NumDeviceFree; now > frees {
				frees = now
				trims++
				require.Greater(t, cached+gone, int64(most))
			}
		}
		require.Positive(t, trims)
		for _, b := range held {
			require.NoError(t, b.Free())
		}
		require.NoError(t, p.Release())
		for _, s := range streams { // a segment with a pending block can't go back
			s.finish()
			require.NoError(t, mustAlloc(t, c, 1, s).Free())
		}
		cached, _ := cachedIn(c.Snapshot(), map[string]int64{"small": 2 * mib, "large": 20 * mib}, func(PoolID) bool { return true })
		require.LessOrEqual(t, cached, int64(most), "of the released pool, too")
		require.NoError(t, c.Close())
	}
}

// TestMaxCachedBytesOfARequest: a request that polls the complete free of a recorded block returns
// its memory to the driver. Workspaces do so, too.
func TestMaxCachedBytesOfARequest(t *testing.T) {
	for name, alloc := range map[string]func(*Cache, context.Context, int64, device.Stream) (Block, error){
		"Alloc": (*Cache).Alloc, "AllocWorkspace": (*Cache).AllocWorkspace,
	} {
		c, dev := newCache(t, Config{MaxCachedBytes: 1})
		s, other := dev.stream(1), dev.stream(2)
		b := mustAlloc(t, c, 30*mib, s)
		other.busy = true
		require.NoError(t, errors.Join(b.RecordStream(other), b.Free()))
		require.EqualValues(t, 30*mib, c.MemoryReserved())
		other.finish()
		_, err := alloc(c, t.Context(), 512, s)
		require.NoError(t, err)
		require.EqualValues(t, 2*mib, c.MemoryReserved(), name)
	}
}

// TestMaxCachedBytesLater: memory that a call can't return, because its context ended or the driver
// failed, is returned by a later one, and by SetConfig at once. Without the option nothing is
// returned.
func TestMaxCachedBytesLater(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	free := func(ctx context.Context) error { return mustAlloc(t, c, 20*mib, s).FreeContext(ctx) }
	reserved := func(mibs int64) { require.Equal(t, mibs, c.MemoryReserved()/mib) }
	kept := mustAlloc(t, c, 3*mib, s) // 17 MiB beside it are more than the bound, and can't go back
	require.NoError(t, free(t.Context()))
	reserved(40)
	c.shards.releasable.Store(true) // as a free does that meets SetConfig
	c.settle(t.Context())
	reserved(40)
	config, err := c.Config().With("max_cached_bytes:10485760")
	require.NoError(t, err)
	require.NoError(t, c.SetConfig(t.Context(), config))
	reserved(20)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, free(ended))
	reserved(40)
	require.NoError(t, free(t.Context()))
	reserved(20)

	failure := errors.New("the driver fails")
	dev.gate = func(_ context.Context, call string) error {
		if call == "Free" {
			return failure
		}
		return nil
	}
	require.NoError(t, free(t.Context()), "the block is free")
	reserved(40)
	dev.gate = nil
	require.NoError(t, free(t.Context()))
	reserved(20)
	b := mustAlloc(t, c, 1, s)

	pool, ctx := newPool(t, c, PoolOptions{})
	require.NoError(t, allocIn(t, ctx, c, 20*mib, s).Free())
	require.NoError(t, mustAlloc(t, c, 1, s).Free())
	reserved(42)
	require.NoError(t, pool.Release())
	require.NoError(t, mustAlloc(t, c, 1, s).Free())
	reserved(22)

	config, err = c.Config().With("max_cached_bytes:0")
	require.NoError(t, errors.Join(err, c.SetConfig(t.Context(), config), b.Free(), free(t.Context())))
	reserved(42)
	_, err = New(dev, Config{MaxCachedBytes: -1})
	require.ErrorIs(t, err, ErrInvalid)
	require.NoError(t, errors.Join(kept.Free(), c.Close()))
}

// freeingObserver frees blocks during the cache's driver calls.
type freeingObserver struct{ blocks []Block }

func (o *freeingObserver) Start(ctx context.Context, op Op) (context.Context, Operation) {
	if op == OpDriverAlloc && len(o.blocks) > 0 {
		b := o.blocks[0]
		o.blocks = o.blocks[1:]
		if err := b.Free(); err != nil {
			panic(err)
		}
	}
	return ctx, nil
}

// TestMaxCachedBytesInAnObserver: a Free inside a request that is calling the driver does not wait
// for it. The request returns the excess.
func TestMaxCachedBytesInAnObserver(t *testing.T) {
	o := new(freeingObserver)
	c, dev := newCache(t, Config{MaxCachedBytes: 1, Observer: o})
	s := dev.stream(1)
	o.blocks = []Block{mustAlloc(t, c, 20*mib, s)}
	b := mustAlloc(t, c, 40*mib, s)
	require.EqualValues(t, 40*mib, c.MemoryReserved())
	require.NoError(t, errors.Join(b.Free(), c.Close()))
}

// TestMaxCachedBytesOfAnEnteredPool: with Exact the default pool's memory stays while a pool is
// entered, and is returned by the first call afterwards.
func TestMaxCachedBytesOfAnEnteredPool(t *testing.T) {
	c, dev := newCache(t, Config{MaxCachedBytes: 1, Exact: true})
	s := dev.stream(1)
	p, _ := newPool(t, c, PoolOptions{})
	b, large := mustAlloc(t, c, 1, s), mustAlloc(t, c, 20*mib, s)
	leave, err := p.Enter()
	require.NoError(t, err)
	require.NoError(t, large.Free())
	require.EqualValues(t, 22*mib, c.MemoryReserved())
	leave()
	require.NoError(t, mustAlloc(t, c, 1, s).Free())
	require.EqualValues(t, 2*mib, c.MemoryReserved())
	require.NoError(t, errors.Join(b.Free(), c.Close()))
}

// TestMaxCachedBytesConcurrentSafe: the bound holds once all goroutines have finished.
func TestMaxCachedBytesConcurrentSafe(t *testing.T) {
	dev := cisterntest.Host(t, 256*mib)
	c, err := New(dev, Config{MaxCachedBytes: 4 * mib})
	require.NoError(t, err)
	var all sync.WaitGroup
	for range 4 {
		s, side := cisterntest.Stream(t, dev), cisterntest.Stream(t, dev)
		all.Go(func() {
			for i := range 100 {
				b, err := c.Alloc(context.Background(), int64(1+i%7)*mib, s)
				assert.NoError(t, errors.Join(err, b.RecordStream(side), b.Free()))
			}
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(dev.Synchronize(t.Context()), c.PollFrees()))
	require.NoError(t, mustAlloc(t, c, 1, cisterntest.Stream(t, dev)).Free())
	require.LessOrEqual(t, c.MemoryReserved(), int64(4*mib))
	require.NoError(t, errors.Join(c.Close(), dev.Close()))
}
