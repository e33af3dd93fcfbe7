package memcache

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The way of a free: endHandOut takes the block from the caller, with PyTorch's history's word free_requested. Without
// recorded streams the chunk becomes free in the same breath (completeFree, free_completed). With some it is pending:
// pendingFrees.record records an event on each stream, and the poll that sees the last one complete ends
// the free (pendingFrees.complete). A block that is pending is still active in the statistics.

// freeRecord is what a free leaves for the observer.
type freeRecord struct {
	shard, sequence uint64
	requested       int64
	kind            placement.Kind
	stack           []uintptr // with the history's stacks
	label           *Label
	history         *HistoryStream // that the free told of its beginning
}

// freeBlock ends b's hand-out, and says in was what it was. Its memory is free at once, or after the recorded streams. ctx ends
// the wait for the reader of a streamed history, and nothing else. No lock is held.
func (c *Cache) freeBlock(ctx context.Context, b Block, was *freeRecord) error {
	if invariants.Enabled {
		defer c.verify()
	}
	if h := c.shards.history.Load(); h != nil {
		was.stack = h.stack(StacksAll)
		_ = h.stream.admit(ctx, 0)
		h.stream.begin()
		was.history = h.stream
	}
	if c.config.NoCaching {
		return c.grower.freeUncached(b, was)
	}
	s := b.handout.shard
	s.mu.Lock()
	uses, fits, err := s.endHandOut(b, was, false)
	s.mu.Unlock()
	if !fits {
		c.shards.lockAll()
		uses, _, err = s.endHandOut(b, was, true)
		c.shards.unlockAll()
	}
	if err != nil {
		return fmt.Errorf("memcache: Free of %s: %w", b, err)
	}
	if len(uses) > 0 || c.shards.poisons() {
		return c.pending.record(b.handout, uses)
	}
	return nil
}

// endHandOut takes the block from the caller. If streams are recorded it returns them, and the block is pending. Unless all
// shards are locked it does nothing if a quota is in the way, and says so: what merges may be a larger inactive part than
// there was. s.mu is held.
func (s *shard) endHandOut(b Block, was *freeRecord, allLocked bool) (uses []device.Stream, fits bool, err error) {
	if err := s.checkLive(b); err != nil {
		return nil, true, err
	}
	h := b.handout
	m := b.chunk
	kind := m.Kind()
	d := delta{gaugeAllocatedBlocks: -1, gaugeAllocatedBytes: -m.Size()}
	if m.Size() >= s.shards.rules.MaxSplit {
		d[gaugeOversizeBlocks] = -1
	}
	fits = true
	others := false
	// Where freed memory is poisoned every free is pending: the bytes are overwritten before the chunk can be handed out,
	// and not under a lock.
	waits := len(h.uses) > 0 || s.shards.poisons()
	if !waits {
		freeDelta(m, &d)
		if fits = s.fits(kind, &d); !fits && !allLocked {
			if fits, others = s.makeRoom(kind, &d); !fits && !others {
				return nil, false, nil
			}
		}
	}
	s.sequence++
	was.shard, was.sequence, was.requested, was.kind, was.label = s.id, s.sequence, m.Requested, kind, h.label
	s.recordFree(h, was.stack, !waits)
	s.makePending(h)
	s.apply(kind, &d)
	if waits {
		// recording keeps a poll that sees the first event complete from ending the free while the others are recorded.
		h.recording, h.eventsLeft = true, int32(len(h.uses))
		return h.uses, true, nil
	}
	s.completeFree(h)
	if !fits {
		s.shards.ledger.raisePeaks(s, kind, &d)
	}
	if others {
		s.shards.unlockOthers(s)
	}
	return nil, true, nil
}

// makePending takes a block from its caller, for this moment or longer. s.mu is held.
func (s *shard) makePending(h *handout) {
	s.noteFree(h)
	h.stack, h.lastSerial, h.serial, h.pending = nil, h.serial, 0, true
	if h.scope != nil {
		h.discharge()
	}
}

// tryCompleteFree is completeFree with its delta, for a pending block. Unless all shards are locked it does nothing if a
// quota is in the way, and says so. s.mu is held.
func (s *shard) tryCompleteFree(h *handout, inFree, allLocked bool) bool {
	if s.shards.closed {
		return true
	}
	// Between the free and now the neighbours may have changed: the delta is that of this moment.
	var d delta
	freeDelta(h.chunk, &d)
	kind := h.chunk.Kind()
	fits, others := s.fits(kind, &d), false
	if !fits && !allLocked {
		if fits, others = s.makeRoom(kind, &d); !fits && !others {
			return false
		}
	}
	s.apply(kind, &d)
	s.recordBlock(ActionFreeCompleted, h, h.lastSerial, inFree)
	s.completeFree(h)
	if !fits {
		s.shards.ledger.raisePeaks(s, kind, &d)
	}
	if others {
		s.shards.unlockOthers(s)
	}
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
	s.recycle(h)
}
