package replay

import (
	"context"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// pools are the private pools of a recording that its calls have made so far.
type pools struct {
	cache    *memcache.Cache
	ids      map[uint64][2]uint64 // PyTorch's IDs, by number
	byNumber map[uint64]*privatePool
	entered  int // open contexts
	captures int // those of captures
	// 1 + the number of calls that took up deferred frees
	takenUp int
	// the pool that is being emptied; 0: all pools, or none
	flushed uint64
}

// privatePool is one of them.
type privatePool struct {
	*memcache.Pool
	leaves []func() // exits of its open contexts
}

// context returns the context of a pool's requests. Number 0 is the default pool.
func (ps *pools) context(number uint64) context.Context {
	ctx := context.Background()
	if p := ps.byNumber[number]; p != nil {
		return p.Context(ctx)
	}
	return ctx
}

// id returns the ID of a pool.
func (ps *pools) id(number uint64) memcache.PoolID {
	if p := ps.byNumber[number]; p != nil {
		return p.ID()
	}
	return memcache.PoolID(ps.ids[number])
}

// call makes the call of a step, whose entry is e.
func (ps *pools) call(s *recording.Step, e *recording.Entry) error {
	if s.Edge && e.Action != recording.PoolRelease {
		if err := ps.add(s.Pool, e); err != nil {
			return err
		}
	}
	p := ps.byNumber[s.Pool]
	if p == nil {
		return nil // it could not be made
	}
	switch e.Action {
	case recording.PoolBegin, recording.CaptureBegin:
		leave, err := p.Enter()
		if err != nil {
			return err
		}
		p.leaves = append(p.leaves, leave)
		ps.count(e.Action == recording.CaptureBegin, 1)
	case recording.PoolEnd, recording.CaptureEnd:
		if last := len(p.leaves) - 1; last >= 0 {
			p.leaves[last]()
			p.leaves = p.leaves[:last]
			ps.count(e.Action == recording.CaptureEnd, -1)
		}
	case recording.PoolRelease:
		if s.Edge {
			return p.Release()
		}
	}
	return nil
}

// count adds n to the number of open contexts, and to that of captures if the context is one.
func (ps *pools) count(capture bool, n int) {
	ps.entered += n
	if capture {
		ps.captures += n
	}
}

// takeUp records a call that takes up deferred frees, unless a pool is entered.
func (ps *pools) takeUp() {
	if ps.entered == 0 {
		ps.takenUp++
	}
}

// add makes a pool with PyTorch's ID.
func (ps *pools) add(number uint64, e *recording.Entry) error {
	o := memcache.PoolOptions{ID: memcache.PoolID(ps.ids[number])}
	if e.Action == recording.PoolNew {
		o.UseOnOOM, o.NoSplit = e.Size&recording.PoolUseOnOOM != 0, e.Size&recording.PoolNoSplit != 0
	}
	p, err := ps.cache.NewPool(o)
	if err != nil {
		return err
	}
	ps.byNumber[number] = &privatePool{Pool: p}
	return nil
}

// addAll makes the private pools of a recording without calls.
func (ps *pools) addAll(p *recording.Program) error {
	if p.Calls || p.Own {
		return nil
	}
	for number := range ps.ids {
		if err := ps.add(number, &recording.Entry{}); err != nil {
			return err
		}
	}
	return nil
}

// release releases the pools whose segments the entries return to the driver, except own, the pool
// of the request that returned them.
func (ps *pools) release(own uint64, entries []recording.Entry) {
	for i := range entries {
		e := &entries[i]
		if p := ps.byNumber[uint64(e.Pool)]; p != nil && e.Action.Releases() && uint64(e.Pool) != own {
			_ = p.Release()
		}
	}
}

// emptyCache calls EmptyCache for a pool, or for all with number 0.
func (ps *pools) emptyCache(number uint64) error {
	defer ps.takeUp()
	if number == 0 {
		return ps.cache.EmptyCache(context.Background())
	}
	p := ps.byNumber[number]
	if p == nil {
		return nil
	}
	if ps.cache.Config().Exact { // otherwise it waits for all
		ps.flushed = number
	}
	defer func() { ps.flushed = 0 }()
	return p.EmptyCache(context.Background())
}
