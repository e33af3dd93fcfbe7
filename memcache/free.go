package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The way of a free: endHandOut takes the block from the caller, with PyTorch's history's word free_requested. Without
// recorded streams the chunk becomes free in the same breath (completeFree, free_completed). With some it is pending:
// recordEvents records an event on each stream, pending.go keeps them, and the poll that sees the last one complete ends
// the free (completePending). A block that is pending is still active in the statistics.

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
		return c.freeUncached(b, was)
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
		return c.recordEvents(b.handout, uses)
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

// recordEvents records an event on each stream that uses the freed block h. Recording may wait for a full queue, so no
// lock is held; nobody else touches its uses until its last event is complete and recordingDone was called.
func (c *Cache) recordEvents(h *handout, uses []device.Stream) error {
	var errs []error
	for _, stream := range uses {
		// Whatever fails, each stream ends up either in the queues or counted as done: the block is never lost.
		e, err := c.recordEvent(stream)
		if err != nil {
			errs = append(errs, err)
		}
		if err := c.pending.push(c, stream, e, h); err != nil {
			errs = append(errs, err)
		}
	}
	// The slice stays with the handout, so that the next one records without allocating; cleared, so that it keeps no stream
	// alive.
	clear(uses)
	h.uses = uses[:0]
	if c.pending.recordingDone(h) {
		c.completePending(h, true)
	}
	return errors.Join(errs...)
}

// recordEvent records an event on s. It returns nil when s has completed its work already: it is closed, or was waited for
// because no event could be had.
func (c *Cache) recordEvent(s device.Stream) (device.Event, error) {
	var e device.Event
	var err error
	foreign := c.foreign(s)
	if foreign == nil {
		e, err = c.pending.events.Get()
	} else {
		e, err = s.Device().NewEvent(device.EventOptions{})
	}
	if err != nil {
		return nil, c.synchronize(s)
	}
	if err := s.Record(e); err == nil {
		return e, nil
	}
	_ = c.pending.putEvent(e, foreign)
	if s.Closed() {
		return nil, nil
	}
	return nil, c.synchronize(s)
}

// foreign is s if it is another device's, or nil.
func (c *Cache) foreign(s device.Stream) device.Stream {
	if s.Device() != c.dev {
		return s
	}
	return nil
}

// synchronize waits for everything queued on s. A stream that is being closed refuses to be waited for while its work
// goes on; but every Close waits for that, whichever is first.
func (c *Cache) synchronize(s device.Stream) error {
	err := s.Synchronize(context.Background())
	if errors.Is(err, device.ErrClosed) {
		err = s.Close()
	}
	if err != nil && !s.Closed() {
		return fmt.Errorf("memcache: Free: waiting for stream %d: %w", s.ID(), err)
	}
	return nil
}

// completePending ends the free of a block whose last event is complete, in the call of Free itself or not. No lock is held;
// nobody else has the block.
func (c *Cache) completePending(h *handout, inFree bool) {
	if c.shards.poisons() {
		c.poison(h)
	}
	s := h.shard
	s.mu.Lock()
	ok := s.tryCompleteFree(h, inFree, false)
	s.mu.Unlock()
	if !ok {
		c.shards.lockAll()
		s.tryCompleteFree(h, inFree, true)
		c.shards.unlockAll()
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
