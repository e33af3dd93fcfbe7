package memcache

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// freeBlock ends b's hand-out. Its memory returns at once, or after the recorded streams.
func (c *Cache) freeBlock(b Block, e *Event) error {
	c.mu.Lock()
	if err := c.live(b); err != nil {
		c.mu.Unlock()
		return fmt.Errorf("memcache: Free of %s: %w", b, err)
	}
	m := b.meta
	c.sequence++
	e.Seq, e.Requested, e.Pool = c.sequence, m.requested, m.kind.String()
	m.serial = 0
	c.discharge(m)
	c.stats.Allocation.sub(m.kind, 1)
	c.stats.AllocatedBytes.sub(m.kind, m.size)
	if m.size >= c.rules.maxSplit {
		c.stats.OversizeAllocations.sub(1)
	}
	if len(m.uses) == 0 {
		c.release(m)
		c.mu.Unlock()
		return nil
	}
	m.events = len(m.uses)
	uses := m.uses
	c.mu.Unlock()
	return c.recordUses(m, uses)
}

// recordUses records an event on each stream that uses the freed block m. Recording may wait for a full
// queue, so no lock is held; nobody else touches m's uses until its last event is complete.
func (c *Cache) recordUses(m *meta, uses []device.Stream) error {
	var errs []error
	for _, s := range uses {
		w, err := c.record(s)
		if err != nil {
			errs = append(errs, err)
		}
		c.mu.Lock()
		switch {
		case w == nil:
			m.events--
		case c.closed:
			m.events--
			errs = append(errs, w.event.Close())
		default:
			w.meta = m
			c.pending.push(s.ID(), w)
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(uses)
	m.uses = uses[:0]
	if m.events == 0 && !c.closed {
		c.release(m)
	}
	return errors.Join(errs...)
}

// record records an event on s. It returns nil when s is past the block already: closed, or waited for
// because no event could be had.
func (c *Cache) record(s device.Stream) (*waiting, error) {
	c.mu.Lock()
	w := c.pending.unused()
	c.mu.Unlock()
	if w == nil {
		e, err := c.dev.NewEvent(device.EventOptions{})
		if err != nil {
			return nil, c.synchronize(s)
		}
		w = &waiting{event: e}
	}
	err := s.Record(w.event)
	if err == nil {
		return w, nil
	}
	c.mu.Lock()
	c.pending.reuse(w)
	c.mu.Unlock()
	if s.Closed() {
		return nil, nil
	}
	return nil, c.synchronize(s)
}

func (c *Cache) synchronize(s device.Stream) error {
	if err := s.Synchronize(context.Background()); err != nil && !s.Closed() {
		return fmt.Errorf("memcache: Free: waiting for stream %d: %w", s.ID(), err)
	}
	return nil
}

// release makes a freed block available: it absorbs its free neighbours and enters the index (free_block).
// c.mu is held.
func (c *Cache) release(m *meta) {
	s, kind, size := &c.stats, m.kind, m.size
	var count, bytes int64 // by how much the parts of segments change
	for _, n := range [2]*meta{m.prev, m.next} {
		if n != nil && n.indexed && !n.unmapped {
			count--
			bytes -= n.size
			c.absorb(m, n)
		}
	}
	c.makeFree(m)
	if !m.whole() {
		count++
		bytes += m.size
	}
	if !m.segment.expandable {
		s.InactiveSplit.move(kind, count)
		s.InactiveSplitBytes.move(kind, bytes)
	}
	s.Active.sub(kind, 1)
	s.ActiveBytes.sub(kind, size)
	s.RequestedBytes.sub(kind, m.requested)
}

// absorb takes the neighbour n out of its index and into m. c.mu is held.
func (c *Cache) absorb(m, n *meta) {
	if n.unmapped {
		c.unmapped[n.kind].remove(n)
	} else {
		c.free[n.kind].remove(n)
		c.stats.Merges++
	}
	m.absorb(n)
	c.recycle(n)
}

// rejoin makes a part of an expandable segment free that was out of the index while no lock was held, in
// which its neighbours may have become free. c.mu is held.
func (c *Cache) rejoin(m *meta) {
	for _, n := range [2]*meta{m.prev, m.next} {
		if n != nil && n.indexed && !n.unmapped {
			c.absorb(m, n)
		}
	}
	c.makeFree(m)
}

// makeFree puts a block into the index. c.mu is held.
func (c *Cache) makeFree(m *meta) {
	m.born = c.calls[m.kind]
	c.free[m.kind].insert(m)
}
