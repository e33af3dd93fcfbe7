package memcache

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// entered is a cache with an entered pool, and two streams, the second of which is held.
type entered struct {
	*Cache
	t       *testing.T
	ctx     context.Context
	s, side *null.Stream
	release func()
	leave   func()
}

func newEntered(t *testing.T, config Config, before func(*entered)) *entered {
	dev, err := null.New(null.Config{Capacity: 64 << 20})
	require.NoError(t, err)
	e := &entered{t: t}
	e.Cache, err = New(dev, config)
	require.NoError(t, err)
	e.s, err = dev.NewStreamWithID(1)
	require.NoError(t, err)
	e.side, err = dev.NewStreamWithID(2)
	require.NoError(t, err)
	e.release, err = e.side.Hold()
	require.NoError(t, err)
	p, ctx := newPool(t, e.Cache, PoolOptions{})
	e.ctx = ctx
	before(e)
	e.leave, err = p.Enter()
	require.NoError(t, err)
	return e
}

func (e *entered) alloc(ctx context.Context, mib int64) Block {
	return allocIn(e.t, ctx, e.Cache, mib<<20, e.s)
}

func (e *entered) free(b Block, use ...device.Stream) {
	for _, s := range use {
		require.NoError(e.t, b.RecordStream(s))
	}
	require.NoError(e.t, b.Free())
}

func (e *entered) pending() int64 {
	s := e.Stats()
	return s.Active.All.Current - s.Allocation.All.Current
}

// TestEnteredNoPoll: with Exact no request polls pending frees while a pool is entered; without
// Exact requests do.
func TestEnteredNoPoll(t *testing.T) {
	for _, exact := range []bool{true, false} {
		var b Block
		e := newEntered(t, Config{Exact: exact}, func(e *entered) {
			b = e.alloc(context.Background(), 12)
			e.free(b, e.side)
		})
		e.release()
		other := e.alloc(context.Background(), 12)
		require.Equal(t, exact, other.Ptr() != b.Ptr())
		if exact {
			require.NoError(t, e.PollFrees())
			require.EqualValues(t, 1, e.pending())
			e.leave()
			e.leave() // only once
			require.Equal(t, b.Ptr(), e.alloc(context.Background(), 12).Ptr())
		}
		require.Zero(t, e.pending())
	}
}

// TestEnteredFrees: with Exact, frees while a pool is entered are deferred. Afterwards the streams
// that were recorded inside are dropped, even if they had also been recorded before, and the others
// get an event.
func TestEnteredFrees(t *testing.T) {
	var before, both Block
	e := newEntered(t, Config{Exact: true}, func(e *entered) {
		before, both = e.alloc(context.Background(), 12), e.alloc(context.Background(), 14)
		require.NoError(t, before.RecordStream(e.side))
		require.NoError(t, both.RecordStream(e.side))
	})
	inside := e.alloc(e.ctx, 3)
	e.free(inside, e.side)
	e.free(both, e.side)
	e.free(before)
	require.NotEqual(t, inside.Ptr(), e.alloc(e.ctx, 3).Ptr())
	require.EqualValues(t, 3, e.pending())
	e.leave()
	require.EqualValues(t, 3, e.pending(), "until somebody asks")
	e.alloc(context.Background(), 1)
	require.EqualValues(t, 1, e.pending(), "the side stream is held still")
	e.release()
	require.Equal(t, before.Ptr(), e.alloc(context.Background(), 12).Ptr())
	require.Equal(t, both.Ptr(), e.alloc(context.Background(), 14).Ptr())
	require.Zero(t, e.pending())
	require.NoError(t, e.check())
}

// TestEnteredNoFlush: with Exact, while a pool is entered, a request that finds no memory fails at
// once, and EmptyCache waits for nothing and returns only the memory of released pools.
func TestEnteredNoFlush(t *testing.T) {
	var gone *Pool
	e := newEntered(t, Config{Exact: true}, func(e *entered) {
		e.free(e.alloc(context.Background(), 40))
		var ctx context.Context
		gone, ctx = newPool(t, e.Cache, PoolOptions{})
		e.free(e.alloc(ctx, 1))
	})
	_, err := e.Alloc(e.ctx, 40<<20, e.s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.NoError(t, gone.Release())
	require.NoError(t, e.EmptyCache(context.Background()))
	s := e.Stats()
	require.Equal(t, []int64{0, 0, 1, 40 << 20}, []int64{s.NumAllocRetries, s.NumSyncAllStreams, s.NumOOMs, s.ReservedBytes.All.Current})
	e.leave()
	e.alloc(e.ctx, 40)
	s = e.Stats()
	require.Equal(t, []int64{1, 1, 1}, []int64{s.NumAllocRetries, s.NumSyncAllStreams, s.NumOOMs})
}

// TestPoolOfItsOwnIsEmptied: with Exact, EmptyCache of a pool does not complete the pending frees
// of others.
func TestPoolOfItsOwnIsEmptied(t *testing.T) {
	for _, exact := range []bool{true, false} {
		e := newEntered(t, Config{Exact: exact}, func(*entered) {})
		e.leave()
		p, ctx := newPool(t, e.Cache, PoolOptions{})
		e.free(e.alloc(ctx, 3), e.side)
		e.free(e.alloc(context.Background(), 3), e.side)
		require.NoError(t, p.Release())
		e.release()
		require.NoError(t, p.EmptyCache(context.Background()))
		s := e.Stats()
		require.EqualValues(t, 20<<20, s.ReservedBytes.All.Current)
		require.Equal(t, exact, e.pending() == 1)
		require.EqualValues(t, 1, s.NumSyncAllStreams)
		require.NoError(t, p.EmptyCache(context.Background()))
		require.Equal(t, exact, e.Stats().NumSyncAllStreams == 1, "the pool is gone")
	}
}

func TestEnterRefused(t *testing.T) {
	c, _ := newCache(t, Config{Exact: true})
	_, err := (*Pool)(nil).Enter()
	require.ErrorIs(t, err, ErrInvalid)
	p, _ := newPool(t, c, PoolOptions{ID: PoolID{7, 0}})
	require.Equal(t, "private pool 7", p.String())
	for _, id := range []PoolID{{7, 0}, {1, 1}} {
		_, err = c.NewPool(PoolOptions{ID: id})
		require.ErrorIs(t, err, ErrInvalid, id)
	}
	one, _ := newPool(t, c, PoolOptions{ID: PoolID{0, 1}})
	two, _ := newPool(t, c, PoolOptions{})
	require.Equal(t, []PoolID{{0, 1}, {0, 2}}, []PoolID{one.ID(), two.ID()})
	require.NoError(t, p.Release())
	_, err = p.Enter()
	require.ErrorIs(t, err, ErrReleased)
	newPool(t, c, PoolOptions{ID: PoolID{7, 0}})
	q, _ := newPool(t, c, PoolOptions{})
	leave, err := q.Enter()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	leave()
	_, err = q.Enter()
	require.ErrorIs(t, err, ErrClosed)
}

// TestCapturedFrees: a block that a captured stream uses becomes free after the capture, and with
// GraphCaptureRecordStreamReuse during it, once its own stream has waited.
func TestCapturedFrees(t *testing.T) {
	for _, reuse := range []bool{false, true} {
		for _, exact := range []bool{false, true} {
			dev, err := host.New(host.Config{Capacity: 64 << 20})
			require.NoError(t, err)
			c, err := New(dev, Config{Exact: exact, GraphCaptureRecordStreamReuse: reuse})
			require.NoError(t, err)
			s, err := dev.NewStream(device.StreamOptions{})
			require.NoError(t, err)
			side, err := dev.NewStream(device.StreamOptions{})
			require.NoError(t, err)
			p, ctx := newPool(t, c, PoolOptions{})
			leave, err := p.Enter()
			require.NoError(t, err)
			capture := s.(device.GraphCapturer)
			order := func(from, to device.Stream) {
				e, err := dev.NewEvent(device.EventOptions{})
				require.NoError(t, err)
				require.NoError(t, from.Record(e))
				require.NoError(t, to.Wait(e))
			}
			require.NoError(t, capture.BeginCapture())
			order(s, side)
			b := allocIn(t, ctx, c, 3<<20, s)
			require.NoError(t, side.Memset(b.Ptr(), 1, b.Size()))
			require.NoError(t, b.RecordStream(side))
			require.NoError(t, b.Free())
			require.NoError(t, c.PollFrees(), "of no stream")
			x := allocIn(t, ctx, c, 3<<20, s)
			require.NotEqual(t, b.Ptr(), x.Ptr(), "the side stream is not waited for")
			order(side, s)
			y := allocIn(t, ctx, c, 3<<20, s)
			require.Equal(t, reuse, b.Ptr() == y.Ptr(), "reuse %t, exact %t", reuse, exact)
			graph, err := capture.EndCapture()
			require.NoError(t, err)
			leave()
			require.NoError(t, c.PollFrees()) // records the event
			require.NoError(t, side.Synchronize(context.Background()))
			z := allocIn(t, ctx, c, 3<<20, s)
			require.Equal(t, reuse, b.Ptr() != z.Ptr())
			require.NoError(t, graph.Close())
			for _, b := range []Block{x, y, z} {
				require.NoError(t, b.Free())
			}
			require.NoError(t, c.Close())
			require.NoError(t, dev.Close())
		}
	}
}

// TestPoolTable: the orders are those observed in PyTorch, and each pool is in the table once after
// any additions and removals.
func TestPoolTable(t *testing.T) {
	pool := func(n uint64) *placement.Pool { return &placement.Pool{ID: PoolID{0, n}} }
	numbers := func(list []*placement.Pool) (ids []uint64) {
		for _, p := range list {
			ids = append(ids, p.ID[1])
		}
		return ids
	}
	var table poolTable
	want := [][]uint64{{1}, {2, 1}, {2, 1, 3}, {2, 4, 1, 3}, {5, 2, 4, 1, 3}, {5, 2, 4, 1, 6, 3}}
	var pools []*placement.Pool
	for i := range want {
		pools = append(pools, pool(uint64(i+1)))
		table.add(pools[i])
		require.Equal(t, want[i], numbers(table.all()))
	}
	table.remove(pools[3])
	require.Equal(t, []uint64{5, 2, 1, 6, 3}, numbers(table.all()))
	require.False(t, table.has(pools[3]))

	r := rand.New(rand.NewPCG(1, 2))
	table = poolTable{}
	in := map[*placement.Pool]bool{}
	for i := range uint64(4000) {
		if r.IntN(3) > 0 {
			p := pool(i + 1)
			in[p] = true
			table.add(p)
		} else {
			for p := range in {
				delete(in, p)
				table.remove(p)
				break
			}
		}
		if i%50 == 0 {
			require.Len(t, table.all(), len(in))
			for p := range in {
				if !table.has(p) {
					t.Fatalf("pool %d was added and is not found", p.ID[1])
				}
			}
			before := poolSlot{distance: -1}
			for at, s := range table.slots {
				switch {
				case s.pool == nil:
					s.distance = -1
				case s.distance != at-table.home(s.pool):
					t.Fatalf("slot %d says that its pool is %d slots from home; it is %d",
						at, s.distance, at-table.home(s.pool))
				case s.distance > before.distance+1:
					t.Fatalf("slot %d is %d slots from home, after one of %d that made room",
						at, s.distance, before.distance)
				}
				before = s
			}
		}
	}
}

// TestPoolSnapshotAndLimit: a pool's snapshot contains only its own segments, and a limit in bytes
// applies from the next request on.
func TestPoolSnapshotAndLimit(t *testing.T) {
	c, dev := newCache(t, Config{})
	s := dev.stream(1)
	p, ctx := newPool(t, c, PoolOptions{})
	b := allocIn(t, ctx, c, 3<<20, s)
	mustAlloc(t, c, 12<<20, s)
	list := p.Snapshot()
	require.Len(t, list, 1)
	require.Equal(t, b.Ptr(), list[0].Address)
	require.EqualValues(t, 3<<20, list[0].AllocatedSize)
	require.Nil(t, (*Pool)(nil).Snapshot())

	require.ErrorIs(t, c.SetMemoryLimit(-1), ErrInvalid)
	require.NoError(t, c.SetMemoryLimit(40<<20))
	require.EqualValues(t, 40<<20, c.MemoryLimit())
	_, err := c.Alloc(context.Background(), 12<<20, s)
	require.ErrorIs(t, err, ErrOutOfMemory)
	require.NoError(t, c.SetMemoryLimit(0))
	mustAlloc(t, c, 12<<20, s)
}
