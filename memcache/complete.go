package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// The end of a free whose memory had to wait for other streams: with PyTorch's history's word free_completed.

// tryCompleteFree is completeFree with its delta, for a pending block. Unless all shards are locked it does nothing if a
// quota is in the way, and says so. s.mu is held.
func (s *shard) tryCompleteFree(h *handout, inFree, allLocked bool) bool {
	if s.shards.closed {
		return true
	}
	// Between the free and now the neighbours may have changed: the delta is that of this moment.
	var d delta
	freeDelta(h.chunk, &d)
	if !s.add(nil, h.chunk.Kind(), &d, allLocked) {
		return false
	}
	countPool(h.chunk, &d)
	s.recordBlock(ActionFreeCompleted, h, h.lastSerial, inFree)
	s.completeFree(h)
	return true
}

// freeDelta adds to d what completeFree changes. The lock of the chunk's shard is held.
func freeDelta(m *placement.Chunk, d *delta) {
	d[gaugeActiveBlocks]--
	d[gaugeActiveBytes] -= m.Size()
	d[gaugeRequestedBytes] -= m.Requested
	inactive := m.Freed()
	d[gaugeInactiveSplitBlocks] += inactive.Blocks
	d[gaugeInactiveSplitBytes] += inactive.Bytes
}

// completeFree makes a pending block's memory available. s.mu is held, and the delta was applied.
func (s *shard) completeFree(h *handout) {
	m := h.chunk
	m.Tag = h.label
	s.merges += s.arena.Free(m, s.now(m.Kind()))
	if s.shards.config().MaxCachedBytes != 0 && s.arena.ReleasableBytes(m) > 0 {
		s.shards.releasable.Store(true)
	}
	s.keepHandout(h)
	s.cache.grower.waits.countFree()
}
