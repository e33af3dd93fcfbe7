package memcache

import (
	"context"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// Memory that goes back to the driver before it has to: old segments, while garbage collection is armed, and segments that
// are too large to be split, in place of a flush of everything.

// collectGarbage returns old free segments of the large pool, of no private one, while more than the threshold is reserved
// (garbage_collect_cached_blocks). A segment's age is the number of searches since it became free, by gcClock, which is
// advanced only while collection is armed; each pass frees those of at least the mean age. Segments that were used a
// moment ago stay, where a flush would return them too and the next step would ask the driver for them again. The growth
// lock is held; no shard is locked while the driver works.
func (g *grower) collectGarbage(ctx context.Context) error {
	// All shards: the threshold is of what the whole cache has reserved, and the oldest segment may be any stream's.
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
	// They are taken out before the locks are given up, so that no hit takes them while the driver works.
	var victims []taken
	for _, m := range placement.TakeOldest(candidates, excess, g.shards.gcClock[placement.Large].Load()) {
		victims = append(victims, taken{owner[m], m})
	}
	g.shards.unlockAll()
	return g.driverFreeAll(ctx, victims)
}

// releaseOversize returns one free segment that is large enough for the request and for max_split_size, or
// the largest ones that together are, and reports whether it did (release_available_cached_blocks). The
// growth lock is held.
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
