package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// The way of a free: endHandOut takes the block from the caller, with PyTorch's history's word free_requested. Without
// recorded streams the chunk becomes free in the same breath (completeFree, free_completed). With some it is pending:
// recordEvents records an event on each stream, pending.go keeps them, and the poll that sees the last one complete ends
// the free (completePending). A chunk that is pending is still active in the statistics.

// freeRecord is what a free leaves for the observer.
type freeRecord struct {
	shard, sequence uint64
	requested       int64
	kind            poolKind
	stack           []uintptr // with the history's stacks
	label           *Label
	history         *HistoryStream // that the free told of its beginning
}

// freeBlock ends b's hand-out. Its memory is free at once, or after the recorded streams. ctx ends the wait for the reader of
// a streamed history, and nothing else. No lock is held.
func (c *Cache) freeBlock(ctx context.Context, b Block) (was freeRecord, err error) {
	if invariants.Enabled {
		defer c.verify()
	}
	if h := c.history.Load(); h != nil {
		was.stack = h.stack(StacksAll)
		_ = h.stream.admit(ctx, 0)
		h.stream.begin()
		was.history = h.stream
	}
	if c.config.NoCaching {
		history := was.history
		was, err = c.freeUncached(b)
		was.history = history
		return was, err
	}
	s := b.chunk.lockOwner()
	uses, fits, err := s.endHandOut(b, &was, false)
	s.mu.Unlock()
	if !fits {
		c.lockAll()
		uses, _, err = b.chunk.shard.Load().endHandOut(b, &was, true)
		c.unlockAll()
	}
	if err != nil {
		return was, fmt.Errorf("memcache: Free of %s: %w", b, err)
	}
	if len(uses) > 0 || c.poisons() {
		return was, c.recordEvents(b.chunk, uses)
	}
	return was, nil
}

// endHandOut takes the block from the caller. If streams are recorded it returns them, and the chunk is pending. Unless all
// shards are locked it does nothing if a quota is in the way, and says so: what merges may be a larger inactive part than
// there was. s.mu, of the shard that owns the chunk, is held.
func (s *shard) endHandOut(b Block, was *freeRecord, allLocked bool) (uses []device.Stream, fits bool, err error) {
	if err := s.checkLive(b); err != nil {
		return nil, true, err
	}
	m := b.chunk
	d := delta{gaugeAllocatedBlocks: -1, gaugeAllocatedBytes: -m.size}
	if m.size >= s.cache.sizing.maxSplit {
		d[gaugeOversizeBlocks] = -1
	}
	fits = true
	others := false
	// Where freed memory is poisoned every free is pending: the bytes are overwritten before the chunk can be handed out,
	// and not under a lock.
	waits := len(m.uses) > 0 || s.cache.poisons()
	if !waits {
		s.freeDelta(m, &d)
		if fits = s.fits(m.kind, &d); !fits && !allLocked {
			if fits, others = s.makeRoom(m.kind, &d); !fits && !others {
				return nil, false, nil
			}
		}
	}
	s.sequence++
	was.shard, was.sequence, was.requested, was.kind, was.label = s.id, s.sequence, m.requested, m.kind, m.label
	s.recordFree(m, was.stack, !waits)
	s.noteFree(m)
	m.stack, m.lastSerial = nil, m.serial
	m.serial = 0
	if m.scope != nil {
		m.discharge(s.cache)
	}
	s.apply(m.kind, &d)
	if waits {
		// recording keeps a poll that sees the first event complete from ending the free while the others are recorded.
		m.pending, m.recording, m.eventsLeft = true, true, len(m.uses)
		return m.uses, true, nil
	}
	kind := m.kind
	s.completeFree(m)
	if !fits {
		s.cache.raisePeaks(s, kind, &d)
	}
	if others {
		s.cache.unlockOthers(s)
	}
	return nil, true, nil
}

// recordEvents records an event on each stream that uses the freed chunk m. Recording may wait for a full queue, so no
// lock is held; nobody else touches m's uses until its last event is complete and recordingDone was called.
func (c *Cache) recordEvents(m *chunk, uses []device.Stream) error {
	var errs []error
	for _, stream := range uses {
		// Whatever fails, each stream ends up either in the queues or counted as done: the block is never lost.
		e, err := c.recordEvent(stream)
		if err != nil {
			errs = append(errs, err)
		}
		if err := c.pending.push(c, stream, e, m); err != nil {
			errs = append(errs, err)
		}
	}
	// The slice stays with the chunk, so that the next hand-out records without allocating; cleared, so that it keeps no
	// stream alive.
	clear(uses)
	m.uses = uses[:0]
	if c.pending.recordingDone(m) {
		c.completePending(m, true)
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

// completePending ends the free of a chunk whose last event is complete, in the call of Free itself or not. No lock is held;
// nobody else has the chunk.
func (c *Cache) completePending(m *chunk, inFree bool) {
	if c.poisons() {
		c.poison(m)
	}
	s := m.lockOwner()
	ok := s.tryCompleteFree(m, inFree, false)
	s.mu.Unlock()
	if !ok {
		c.lockAll()
		m.shard.Load().tryCompleteFree(m, inFree, true)
		c.unlockAll()
	}
}

// tryCompleteFree is completeFree with its delta, for a pending chunk. Unless all shards are locked it does nothing if a
// quota is in the way, and says so. s.mu is held.
func (s *shard) tryCompleteFree(m *chunk, inFree, allLocked bool) bool {
	if s.cache.closed {
		return true
	}
	// Between the free and now the neighbours may have changed: the delta is that of this moment.
	var d delta
	s.freeDelta(m, &d)
	fits, others := s.fits(m.kind, &d), false
	if !fits && !allLocked {
		if fits, others = s.makeRoom(m.kind, &d); !fits && !others {
			return false
		}
	}
	s.apply(m.kind, &d)
	s.recordBlock(ActionFreeCompleted, m, m.lastSerial, inFree)
	kind := m.kind
	s.completeFree(m)
	if !fits {
		s.cache.raisePeaks(s, kind, &d)
	}
	if others {
		s.cache.unlockOthers(s)
	}
	return true
}

// freeDelta adds to d what completeFree changes: m is not active any more, its free neighbours are no inactive parts of a
// segment, and what they become together may be one. s.mu is held.
func (s *shard) freeDelta(m *chunk, d *delta) {
	d[gaugeActiveBlocks]--
	d[gaugeActiveBytes] -= m.size
	d[gaugeRequestedBytes] -= m.requested
	if m.segment.expandable {
		return
	}
	// As if merged: what is beyond the free neighbours decides whether the result is a part of a segment or a whole one.
	size, before, after := m.size, m.prev, m.next
	if before.mergeable() {
		d[gaugeInactiveSplitBlocks]--
		d[gaugeInactiveSplitBytes] -= before.size
		size, before = size+before.size, before.prev
	}
	if after.mergeable() {
		d[gaugeInactiveSplitBlocks]--
		d[gaugeInactiveSplitBytes] -= after.size
		size, after = size+after.size, after.next
	}
	if before != nil || after != nil {
		d[gaugeInactiveSplitBlocks]++
		d[gaugeInactiveSplitBytes] += size
	}
}

// completeFree makes a chunk available: it absorbs its free neighbours and enters the index (free_block). s.mu is held, and
// the delta was applied.
func (s *shard) completeFree(m *chunk) {
	m.pending = false
	for _, n := range [2]*chunk{m.prev, m.next} {
		if n.mergeable() {
			s.absorb(m, n)
		}
	}
	s.insertFree(m)
}

// absorb takes the neighbour n out of its index and into m, and recycles its record. Unmapped neighbours are merged by growth
// alone and are no merges for the statistics. s.mu is held.
func (s *shard) absorb(m, n *chunk) {
	if n.unmapped {
		n.segment.unmapped.remove(n)
	} else {
		n.segment.free.remove(n)
		s.merges++
	}
	m.absorb(n)
	s.recycle(n)
}

// insertFree puts a chunk into the index, as of now. s.mu is held.
func (s *shard) insertFree(m *chunk) {
	m.freeSince = s.cache.gcClock[m.kind].Load()
	m.segment.free.insert(m)
}
