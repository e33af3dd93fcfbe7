package replay

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// poolRecorder is a recorder that also allocates from private pools, and records the calls.
type poolRecorder struct {
	*recorder
	calls  []placedCall
	pools  []*recordedPool
	inside []*recordedPool // contexts, the innermost last
	leaves []func()
}

// placedCall is a call before the entry at, of all that the history had.
type placedCall struct {
	at    int
	entry recording.Entry
}

type recordedPool struct {
	*memcache.Pool
	uses int
}

func (p *poolRecorder) call(a recording.Action, addr uint64, size int64, stream uint64) {
	p.calls = append(p.calls, placedCall{len(p.cache.History()), recording.Entry{Action: a, Addr: device.Ptr(addr), Size: size, Stream: stream, Block: -1}})
}

func (p *poolRecorder) newPool() {
	flags := int64(p.r.IntN(4))
	pool, err := p.cache.NewPool(memcache.PoolOptions{UseOnOOM: flags&recording.PoolUseOnOOM != 0, NoSplit: flags&recording.PoolNoSplit != 0})
	require.NoError(p.t, err)
	p.call(recording.PoolNew, pool.ID()[1], flags, 0)
	p.pools = append(p.pools, &recordedPool{pool, 1})
}

func (p *poolRecorder) begin(pool *recordedPool) {
	leave, err := pool.Enter()
	require.NoError(p.t, err)
	p.call(recording.PoolBegin, pool.ID()[1], 0, 0)
	pool.uses++
	p.inside, p.leaves = append(p.inside, pool), append(p.leaves, leave)
	p.ctx = pool.Context(p.ctx)
}

func (p *poolRecorder) end() {
	last := len(p.inside) - 1
	p.leaves[last]()
	p.call(recording.PoolEnd, p.inside[last].ID()[1], 0, 0)
	p.release(p.inside[last])
	p.inside, p.leaves, p.ctx = p.inside[:last], p.leaves[:last], context.Background()
	for _, o := range p.inside {
		p.ctx = o.Context(p.ctx)
	}
}

func (p *poolRecorder) release(pool *recordedPool) {
	p.call(recording.PoolRelease, pool.ID()[1], 0, 0)
	if pool.uses--; pool.uses == 0 {
		require.NoError(p.t, pool.Release())
	}
}

// drop deletes a pool that is not entered.
func (p *poolRecorder) drop(i int) {
	pool := p.pools[i]
	p.release(pool)
	p.call(recording.EmptyPool, pool.ID()[1], 0, 0)
	require.NoError(p.t, pool.EmptyCache(context.Background()))
	p.pools = slices.Delete(p.pools, i, i+1)
}

func (p *poolRecorder) step(w workload) {
	switch x := p.r.Float64(); {
	case x < 0.01 && len(p.pools) < 5:
		p.newPool()
	case x < 0.015 && len(p.pools) > 0 && len(p.inside) == 0:
		p.drop(p.r.IntN(len(p.pools)))
	case x < 0.03 && len(p.pools) > 0 && len(p.inside) < 3:
		p.begin(p.pools[p.r.IntN(len(p.pools))])
	case x < 0.06 && len(p.inside) > 0:
		p.end()
	case x < 0.06+w.empty:
		p.call(recording.EmptyPool, 0, 0, 0)
		require.NoError(p.t, p.cache.EmptyCache(context.Background()))
	case x < 0.1 && len(p.live) > 0: // a second time, perhaps elsewhere
		p.recordStream(p.live[p.r.IntN(len(p.live))], p.streams[p.r.IntN(len(p.streams))])
	default:
		w.empty = 0
		p.recorder.step(w)
	}
}

// recordPools is record with private pools.
func recordPools(t testing.TB, seed uint64, w workload) recording.Recording {
	p := &poolRecorder{recorder: newRecorder(t, seed, w)}
	p.recorded = func(b memcache.Block, s *heldStream) { p.call(recording.RecordStream, uint64(b.Ptr()), 0, s.ID()) }
	for range w.steps {
		p.step(w)
	}
	rec := recorded(p.cache, w)
	rec.Calls, rec.Pools = true, make(map[uint64][2]uint64)
	for _, c := range p.calls {
		if c.entry.Action != recording.RecordStream && c.entry.Addr != 0 {
			rec.Pools[uint64(c.entry.Addr)] = [2]uint64{0, uint64(c.entry.Addr)}
		}
	}
	for i, s := range p.cache.Snapshot().Segments {
		rec.Segments[i].Pool = s.PoolID[1]
	}
	var entries []recording.Entry
	next, kept := 0, 0
	for i, h := range p.cache.History() {
		for ; next < len(p.calls) && p.calls[next].at <= i; next++ {
			entries = append(entries, p.calls[next].entry)
		}
		if kept < len(rec.Entries) && h.Action == memcache.Action(rec.Entries[kept].Action.String()) {
			entries = append(entries, rec.Entries[kept])
			kept++
		}
	}
	for ; next < len(p.calls); next++ {
		entries = append(entries, p.calls[next].entry)
	}
	require.Len(t, rec.Entries, kept)
	rec.Entries = entries
	return rec
}

// TestRandomPoolRecordings verifies recordings of random callers with private pools under every kind of option.
func TestRandomPoolRecordings(t *testing.T) {
	t.Parallel()
	for name, w := range workloads() {
		if name == "expandable/full" {
			continue // where a segment's addresses are is not recorded if its first mapping fails
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			seeds := uint64(2)
			switch {
			case *long:
				seeds = 40
			case testing.Short() && name == "both/limit": // whose flushes of one pool meet other frees
				seeds, w.steps = 1, w.steps/2
			case testing.Short():
				seeds, w.steps = 1, w.steps/4
			case race.Enabled || invariants.Enabled:
				seeds, w.steps = 1, w.steps/3
			}
			for seed := range seeds {
				verifies(t, recordPools(t, seed, w))
			}
		})
	}
}
