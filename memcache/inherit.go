package memcache

import (
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The memory of closed streams. Chunks are reused only on their own stream, so the free chunks of a
// closed stream could never be used again, and its shard would stay in every loop over shards: a
// program that creates a stream for each request would grow without bound. PyTorch keeps them,
// because its streams come from a pool of 32 and are never closed. Here the next request that finds
// no free chunk takes over the entirely free segments of closed streams. That is safe without an
// event, because a closed stream has run everything that was queued on it. The search for closed
// streams is part of the slow path, right before the driver would be called, and costs hits
// nothing.

// inheritSegments moves the free segments of closed streams to the shard of the request's stream
// or, with Exact, to the shard of orphans. It retires the shards of closed streams that have no
// segments left. Each segment stays in its pool. The growth lock is held; shards are retired only
// under it.
func (g *grower) inheritSegments(r *request) {
	// Usually no stream was closed, which this loop finds without locking the shards.
	var closed *shard
	for _, s := range g.shards.list() {
		if s != r.shard && !s.orphans && s.stream.Closed() {
			closed = s
		}
	}
	if closed == nil {
		return
	}
	into := r.shard
	if g.shards.config().Exact {
		into = g.shards.orphansOf(closed.stream)
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	if g.shards.closed {
		return // the shards stay, so that calls on them return ErrClosed
	}
	for _, s := range g.shards.list() {
		if s == r.shard || s == into || !s.stream.Closed() {
			continue
		}
		if !s.closedMarked {
			s.closedMarked = true
			g.shards.history.mark(ActionStreamClosed, s.id, 0)
		}
		s.arena.MoveFree(&into.arena)
		if s.arena.Len() == 0 {
			g.shards.retire(s, r.shard)
		}
	}
}

// retire removes the shard of a closed stream, which has no segments left, from the table. Its sums
// and quotas go to the shard into. All shards are locked, and the growth lock is held. retire
// releases the lock of s.
func (all *shards) retire(s, into *shard) {
	// The quotas must still add up to the peaks, also those of open scopes. s uses nothing, so all
	// of its quotas are unused.
	for row := range s.quota {
		for g := range gauges {
			into.quota[row][g] += s.quota[row][g]
		}
	}
	for k := range s.increases {
		for g := range gauges {
			into.increases[k][g] += s.increases[k][g]
		}
	}
	into.shardCounts.add(s.shardCounts)
	into.peak.freed = append(into.peak.freed, s.peak.freed...)
	for i, q := range s.scopes {
		into.scopes[i].allocated += q.allocated
		into.scopes[i].requested += q.requested
		into.scopes[i].peak.freed = append(into.scopes[i].peak.freed, q.peak.freed...)
	}
	all.ledger.claimed.CompareAndSwap(s, nil)
	// A stale Block keeps the shard alive and gets ErrFreed from it, so the shard must not keep
	// anything else alive.
	s.arena, s.peak, s.spare, s.unusedHandouts, s.stream = placement.Arena{}, peakLog{}, nil, nil, nil
	s.used, s.increases, s.quota, s.scopes = [2]delta{}, [2]delta{}, [rows]delta{}, nil
	s.retired = true
	old := all.list()
	all.table.Store(newShardTable(slices.DeleteFunc(slices.Clone(old), func(o *shard) bool { return o == s })))
	s.mu.Unlock() // unlockAll will not find it
}
