package memcache

import "github.com/cistern-ml/cistern/memcache/internal/placement"

// The end of a free that had to wait for other streams (free_completed in PyTorch's history).

// tryCompleteFree applies the delta of a pending block's free and completes the free. Unless all
// shards are locked it does nothing and returns false if a quota does not allow the delta. s.mu is
// held.
func (s *shard) tryCompleteFree(h *handout, inFree, allLocked bool) bool {
	if s.shards.closed {
		return true
	}
	// The neighbours may have changed since the free, so the delta is computed now.
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

// freeDelta adds the changes that completeFree makes to d. The lock of the chunk's shard is held.
func freeDelta(m *placement.Chunk, d *delta) {
	d[gaugeActiveBlocks]--
	d[gaugeActiveBytes] -= m.Size()
	d[gaugeRequestedBytes] -= m.Requested
	inactive := m.Freed()
	d[gaugeInactiveSplitBlocks] += inactive.Blocks
	d[gaugeInactiveSplitBytes] += inactive.Bytes
}

// completeFree makes a pending block's memory available. The delta was applied. s.mu is held.
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
