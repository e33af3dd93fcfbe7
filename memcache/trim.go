package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The order in which memory is returned when not all of it has to be: the least useful first.
// Memory of released private pools serves no requests any more, so it is first. Then come segments
// of the large pool, then of the small pool, whose 2 MiB cost as much to allocate again as the
// hundred MiB of a large one. In each group the oldest are first, as in garbage collection, which
// alone maintains ages. Among segments of one age, which without garbage collection is all of them,
// the ones whose return takes the fewest driver calls are first, because each call may wait for the
// device: the smallest segment that is enough or, if none is, the largest. An expandable segment
// returns only as many granules as needed, the last ones of a free chunk, because requests take the
// first.

// TrimTo returns free segments to the driver until at most bytes bytes are reserved, or no more can
// be returned. It returns how many bytes it released. The rest stays cached, whereas
// [Cache.EmptyCache] returns everything. It waits for pending frees only if the memory that is
// already free is not enough. Memory in use stays, and so do the segments of unreleased private
// pools, so more than bytes may still be reserved; that is not an error. After an error, released
// counts the bytes that were returned before it.
func (c *Cache) TrimTo(ctx context.Context, bytes int64) (released int64, err error) {
	if bytes < 0 {
		return 0, fmt.Errorf("memcache: TrimTo(%d): %w: it is negative; 0 keeps nothing", bytes, ErrInvalid)
	}
	if invariants.Enabled {
		defer c.verify()
	}
	ctx, op := c.reporter.start(ctx, OpEmptyCache)
	err = c.grower.releasing(ctx, "TrimTo", func() error {
		before := c.MemoryReserved()
		err := (&trim{grower: &c.grower, to: bytes}).run(ctx)
		released = before - c.MemoryReserved()
		c.shards.history.mark(endOf(err, ActionTrim), 0, bytes)
		return err
	})
	c.reporter.end(op, OpInfo{Op: OpEmptyCache, Bytes: released, Err: err})
	return released, err
}

// trim is one call of TrimTo. Only the growth lock is held, so that nothing else changes the
// reserved bytes.
type trim struct {
	grower *grower
	to     int64 // bytes, or toMaxCached
}

// toMaxCached means: return what exceeds Config.MaxCachedBytes.
const toMaxCached = -1

// run returns free memory, waits if that is not enough, and returns the memory that was pending.
func (t *trim) run(ctx context.Context) error {
	if left, err := t.giveBack(ctx); left <= 0 || err != nil {
		return err
	}
	if err := t.grower.awaitFrees(ctx, nil); err != nil {
		return err
	}
	_, err := t.giveBack(ctx)
	return err
}

// giveBack returns free memory to the driver until no more than the target is reserved. It returns
// the excess that is left.
func (t *trim) giveBack(ctx context.Context) (excess int64, err error) {
	g := t.grower
	victims, excess := t.take()
	for _, v := range victims {
		if err != nil {
			v.shard.putBack(v.chunk)
			continue
		}
		before := g.ledger.reserved().Current
		err = g.giveBack(ctx, v, excess)
		excess -= before - g.ledger.reserved().Current
	}
	if err != nil || len(victims) == 0 {
		return excess, err
	}
	g.forgetFreeable(nil)
	return excess, g.returnAddresses(false)
}

// take takes out the chunks to return, in order, and returns the excess over the target.
func (t *trim) take() (victims []taken, excess int64) {
	g := t.grower
	g.shards.lockAll()
	defer g.shards.unlockAll()
	excess = g.ledger.stats.ReservedBytes.All.Current - t.to
	if t.to == toMaxCached {
		excess = g.ledger.surplus()
	}
	missing := excess
	take := func(p *placement.Pool, k placement.Kind) {
		var candidates []placement.Releasable
		owner := make(map[*placement.Chunk]*shard)
		for _, s := range g.shards.list() {
			for _, r := range s.arena.Releasable(p, k) {
				candidates = append(candidates, r)
				owner[r.Chunk] = s
			}
		}
		var chunks []*placement.Chunk
		chunks, missing = placement.TakeExcess(candidates, missing)
		for _, m := range chunks {
			victims = append(victims, taken{owner[m], m})
		}
	}
	for _, p := range g.releasedPools() {
		take(p, placement.Large)
		take(p, placement.Small)
	}
	if !g.shards.inContext() {
		take(nil, placement.Large)
		take(nil, placement.Small)
	}
	if t.to == toMaxCached && missing > 0 && !g.shards.inContext() {
		g.shards.releasable.Store(false) // until returnable memory is freed
	}
	return victims, excess
}
