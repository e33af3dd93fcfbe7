package memcache

import "math"

// What a closed stream leaves. Its free chunks could never be used again, since chunks are reused on their own stream
// alone, and its shard would stay in every loop over shards: a program that makes a stream for each request would grow
// for ever. PyTorch keeps them, as its streams come from a pool of 32 and are never closed. Here the next request that
// finds no free chunk takes over the segments of closed streams that are free as a whole. That is safe without an event:
// a stream that is closed has run everything that was queued on it. The search for closed streams is part of the slow
// path, right before the driver would be called, and costs hits nothing.

// orphanStream is the ID of the shard that keeps, with Exact, what closed streams leave. No stream has this ID: nothing is
// served from there, as in PyTorch, but a flush returns it.
const orphanStream = math.MaxUint64

// inheritSegments moves the free segments of closed streams to the shard of the request's stream or, with Exact, to the
// shard of orphans, and retires the shards of closed streams that have no segment any more. Each segment stays in its
// pool. The growth lock is held: under it alone shards are retired.
func (g *grower) inheritSegments(r *request) {
	// Usually no stream was closed: that is seen without locking the shards.
	var closed *shard
	for _, s := range g.shards.list() {
		if s != r.shard && s.id != orphanStream && s.stream.Closed() {
			closed = s
		}
	}
	if closed == nil {
		return
	}
	into := r.shard
	if g.config.Exact {
		into = g.shards.with(orphanStream, closed.stream)
	}
	g.shards.lockAll()
	defer g.shards.unlockAll()
	if g.shards.closed {
		return // the shards stay, to tell callers so
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
