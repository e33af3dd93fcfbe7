package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Memory that is returned before it must be: old segments while garbage collection is armed, and
// segments too large to be split, instead of a flush of everything.

// collectGarbage returns old free segments of the large pool, outside of private pools, while more
// than the threshold is reserved (garbage_collect_cached_blocks). A segment's age is the number of
// searches since it became free, by gcClock, which advances only while collection is armed. Each
// pass frees the segments of at least the mean age. Recently used segments stay, whereas a flush
// would return them too and the next step would allocate them again. The growth lock is held; no
// shard is locked during driver calls.
func (g *grower) collectGarbage(ctx context.Context) error {
	// All shards, because the threshold applies to all memory that the cache has reserved, and the
	// oldest segment may be any stream's.
	g.shards.lockAll()
	if !g.ledger.gcArmed() {
		g.shards.unlockAll()
		return nil
	}
	excess := g.ledger.stats.ReservedBytes.All.Current - int64(g.ledger.threshold*float64(g.ledger.limit))
	var candidates []*placement.Chunk
	owner := make(map[*placement.Chunk]*shard)
	if excess > 0 {
		for _, s := range g.shards.list() {
			old := s.arena.Old()
			candidates = append(candidates, old...)
			for _, m := range old {
				owner[m] = s
			}
		}
	}
	// They are taken out before the locks are released, so that no hit takes them during the driver
	// calls.
	var victims []taken
	for _, m := range placement.TakeOldest(candidates, excess, g.shards.gcClock[placement.Large].Load()) {
		victims = append(victims, taken{owner[m], m})
	}
	g.shards.unlockAll()
	return g.driverFreeAll(ctx, victims)
}

// releaseOversize returns to the driver one free segment that is large enough for the request and
// for max_split_size, or the largest ones. It reports whether they are large enough together
// (release_available_cached_blocks). The growth lock is held.
func (g *grower) releaseOversize(ctx context.Context, r *request) (bool, error) {
	s := r.shard
	s.mu.Lock()
	if r.Pool.Pinned() && !g.shards.config().Exact {
		s.mu.Unlock()
		return false, nil
	}
	victims, enough := s.arena.TakeOversize(&r.Want)
	s.mu.Unlock()
	return enough, g.driverFreeAll(ctx, s.took(victims))
}
