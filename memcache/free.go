package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// freed is what a free leaves for the observer.
type freed struct {
	shard, sequence uint64
	requested       int64
	kind            poolKind
	stack           []uintptr // with the history's stacks
}

// freeBlock ends b's hand-out. Its memory returns at once, or after the recorded streams.
func (c *Cache) freeBlock(b Block) (was freed, err error) {
	if invariants.Enabled {
		defer c.verify()
	}
	if c.history.Load() != nil {
		was.stack = c.stack(StacksAll)
	}
	if c.config.NoCaching {
		return c.freeUncached(b)
	}
	s := b.meta.lock()
	uses, fits, err := s.giveBack(b, &was, false)
	s.mu.Unlock()
	if !fits {
		c.lockAll()
		uses, _, err = b.meta.shard.Load().giveBack(b, &was, true)
		c.unlockAll()
	}
	if err != nil {
		return was, fmt.Errorf("memcache: Free of %s: %w", b, err)
	}
	if len(uses) > 0 || c.poisons() {
		return was, c.recordUses(b.meta, uses)
	}
	return was, nil
}

// giveBack ends the hand-out. If streams are recorded it returns them, and the block waits. Unless all shards
// are locked it does nothing if a quota is in the way, and says so. s.mu is held.
func (s *shard) giveBack(b Block, was *freed, all bool) (uses []device.Stream, fits bool, err error) {
	if err := s.live(b); err != nil {
		return nil, true, err
	}
	m := b.meta
	d := change{gaugeAllocation: -1, gaugeAllocatedBytes: -m.size}
	if m.size >= s.cache.rules.maxSplit {
		d[gaugeOversize] = -1
	}
	fits = true
	waits := len(m.uses) > 0 || s.cache.poisons()
	if !waits {
		s.releaseChange(m, &d)
		if fits = s.fits(m.kind, &d) || !all && s.borrow(m.kind, &d); !fits && !all {
			return nil, false, nil
		}
	}
	s.sequence++
	was.shard, was.sequence, was.requested, was.kind = s.id, s.sequence, m.requested, m.kind
	s.note(ActionFreeRequested, m, m.serial, was.stack)
	m.stack, m.last = nil, m.serial
	m.serial = 0
	if m.scope != nil {
		m.discharge(s.cache)
	}
	s.apply(m.kind, &d)
	if waits {
		m.pending, m.recording, m.events = true, true, len(m.uses)
		return m.uses, true, nil
	}
	kind := m.kind
	s.release(m)
	if !fits {
		s.cache.raise(s, kind)
	}
	return nil, true, nil
}

// recordUses records an event on each stream that uses the freed block m. Recording may wait for a full
// queue, so no lock is held; nobody else touches m's uses until its last event is complete.
func (c *Cache) recordUses(m *meta, uses []device.Stream) error {
	var errs []error
	for _, stream := range uses {
		w, err := c.record(stream)
		if err != nil {
			errs = append(errs, err)
		}
		if err := c.pending.push(c, stream.ID(), w, m); err != nil {
			errs = append(errs, err)
		}
	}
	clear(uses)
	m.uses = uses[:0]
	if c.pending.recorded(m) {
		c.complete(m)
	}
	return errors.Join(errs...)
}

// record records an event on s. It returns nil when s is past the block already: closed, or waited for
// because no event could be had.
func (c *Cache) record(s device.Stream) (*waiting, error) {
	var w *waiting
	var foreign device.Stream
	if s.Device() != c.dev {
		foreign = s
	} else {
		w = c.pending.unused()
	}
	if w == nil {
		e, err := s.Device().NewEvent(device.EventOptions{})
		if err != nil {
			return nil, c.synchronize(s)
		}
		w = &waiting{event: e, foreign: foreign}
	}
	if err := s.Record(w.event); err == nil {
		return w, nil
	}
	c.pending.giveBack(w)
	if s.Closed() {
		return nil, nil
	}
	return nil, c.synchronize(s)
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

// complete releases a block whose last event is complete.
func (c *Cache) complete(m *meta) {
	if c.poisons() {
		c.poison(m)
	}
	s := m.lock()
	ok := s.tryRelease(m, false)
	s.mu.Unlock()
	if !ok {
		c.lockAll()
		m.shard.Load().tryRelease(m, true)
		c.unlockAll()
	}
}

// tryRelease is release with its changes, for a pending block. Unless all shards are locked it does nothing
// if a quota is in the way, and says so. s.mu is held.
func (s *shard) tryRelease(m *meta, all bool) bool {
	if s.cache.closed {
		return true
	}
	var d change
	s.releaseChange(m, &d)
	fits := s.fits(m.kind, &d) || !all && s.borrow(m.kind, &d)
	if !fits && !all {
		return false
	}
	s.apply(m.kind, &d)
	kind := m.kind
	s.release(m)
	if !fits {
		s.cache.raise(s, kind)
	}
	return true
}

// releaseChange adds what release changes to d: m is not active any more, its free neighbours are not parts,
// and what they become together may be one.
func (s *shard) releaseChange(m *meta, d *change) {
	d[gaugeActive]--
	d[gaugeActiveBytes] -= m.size
	d[gaugeRequestedBytes] -= m.requested
	if m.segment.expandable {
		return
	}
	size, before, after := m.size, m.prev, m.next
	if before.mergeable() {
		d[gaugeInactiveSplit]--
		d[gaugeInactiveSplitBytes] -= before.size
		size, before = size+before.size, before.prev
	}
	if after.mergeable() {
		d[gaugeInactiveSplit]--
		d[gaugeInactiveSplitBytes] -= after.size
		size, after = size+after.size, after.next
	}
	if before != nil || after != nil {
		d[gaugeInactiveSplit]++
		d[gaugeInactiveSplitBytes] += size
	}
}

// release makes a block available: it absorbs its free neighbours and enters the index (free_block). s.mu is
// held.
func (s *shard) release(m *meta) {
	m.pending = false
	s.note(ActionFreeCompleted, m, m.last, nil)
	for _, n := range [2]*meta{m.prev, m.next} {
		if n.mergeable() {
			s.absorb(m, n)
		}
	}
	s.makeFree(m)
}

// absorb takes the neighbour n out of its index and into m. s.mu is held.
func (s *shard) absorb(m, n *meta) {
	if n.unmapped {
		n.segment.unmapped.remove(n)
	} else {
		n.segment.free.remove(n)
		s.merges++
	}
	m.absorb(n)
	s.recycle(n)
}

// makeFree puts a block into the index. s.mu is held.
func (s *shard) makeFree(m *meta) {
	m.born = s.cache.calls[m.kind].Load()
	m.segment.free.insert(m)
}
