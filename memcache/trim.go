package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Which memory goes first, when not all of it has to: what serves the program least. That of released private pools serves
// nobody any more. After it come segments of the large pool, then of the small one, whose two MiB cost as much to ask for
// again as a large one's hundred. In each the oldest go first, as in garbage collection, which alone keeps ages; of one age,
// and so without garbage collection at all, those whose return takes the fewest calls of the driver, each of which may wait
// for the device: the smallest segment that is enough or, if none is, the largest. Of an expandable segment only as many
// granules go as are needed, the last ones of a free chunk: requests take the first.

// TrimTo returns free segments to the driver until at most bytes bytes are reserved, or nothing
// more can go back, and returns how many bytes it released. The rest stays cached, where
// [Cache.EmptyCache] returns all. It waits for pending frees only if what is free already is not
// enough. What is in use stays, and the segments of private pools that were not released, so that
// more than bytes may still be reserved: that is not an error. After an error, released counts the
// bytes that were returned before it.
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

// trim is one call of TrimTo. The growth lock is held, so that nothing else changes what is reserved, and no other.
type trim struct {
	grower *grower
	to     int64 // bytes, or toMaxCached
}

// toMaxCached stands for as many bytes as leave Config.MaxCachedBytes free.
const toMaxCached = -1

// run gives back what is free, waits if that is not enough, and gives back what was pending.
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

// giveBack returns what is free, as far as more is reserved, and says how much more that still is.
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

// take takes out what is to go back, in order, and says how much more is reserved.
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
		g.shards.releasable.Store(false) // until memory is freed that could go back
	}
	return victims, excess
}
