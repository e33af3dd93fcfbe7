package memcache

import (
	"math"
	"slices"
)

// pinnedEvents are the events of one pending block, kept from being used again while a stream waits for them.
type pinnedEvents struct {
	block  *handout
	events []*pendingEvent
	of     []uint64 // the streams that they were recorded on
}

// endByWait ends the free of a block that would serve the request: the shard's stream waits for the streams that use it, on the device. Of
// several it is the block whose last event was recorded first. It is false if there is none. No lock but growth is held.
func (s *shard) endByWait(r *request) (ended bool, err error) {
	p := s.pending
	if p.events.Load() == 0 {
		return false, nil
	}
	pinned := s.pinServing(r)
	if pinned == nil {
		return false, nil
	}
	for i, e := range pinned.events {
		if err == nil && pinned.of[i] != s.id {
			err = s.stream.Wait(e.event)
		}
	}
	if p.unpin(pinned, err == nil) {
		p.complete(pinned.block, false)
	}
	return err == nil, err
}

// pinServing pins the events of a pending block that would serve the request once it is free, or returns nil. Blocks whose free is still recording
// events, and those that another device uses, are left alone.
func (s *shard) pinServing(r *request) *pinnedEvents {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	last := make(map[*handout]uint64) // the number of each block's last event
	for _, q := range p.queues {
		for e := q.head; e != nil; e = e.next {
			if e.foreign != nil || e.handout.recording {
				last[e.handout] = math.MaxUint64
			}
			last[e.handout] = max(last[e.handout], e.number)
		}
	}
	var first *handout
	for h, n := range last {
		if n < math.MaxUint64 && (first == nil || n < last[first]) && h.chunk.WouldServe(&r.Want, s.shards.rules()) {
			first = h
		}
	}
	if first == nil {
		return nil
	}
	pinned := &pinnedEvents{block: first}
	for _, q := range p.queues {
		for e := q.head; e != nil; e = e.next {
			if e.handout == first {
				e.pins++
				pinned.events, pinned.of = append(pinned.events, e), append(pinned.of, q.stream)
			}
		}
	}
	return pinned
}

// unpin lets go of the events. waited says that the block's stream waits for them: then they count as complete. It reports whether
// they were the last that the block waited for, so that the caller ends its free: a poll may have done so meanwhile.
func (p *pendingFrees) unpin(pinned *pinnedEvents, waited bool) (last bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, e := range pinned.events {
		e.pins--
		if waited && e.handout == pinned.block {
			p.unlink(pinned.of[i], e)
			notNegative("the number of pending events", p.events.Add(-1))
			e.handout = nil
			pinned.block.eventsLeft--
			last = pinned.block.eventsLeft == 0
		}
		if e.handout == nil && e.pins == 0 {
			p.keepSpare(e)
		}
	}
	return last
}

// unlink takes an event out of its stream's queue. p.mu is held.
func (p *pendingFrees) unlink(stream uint64, e *pendingEvent) {
	i := slices.IndexFunc(p.queues, func(q *eventQueue) bool { return q.stream == stream })
	q := p.queues[i]
	var before *pendingEvent
	for at := &q.head; *at != nil; at = &(*at).next {
		if *at != e {
			before = *at
			continue
		}
		if *at = e.next; e.next == nil {
			q.tail = before
		}
		break
	}
	if q.head == nil {
		q.next, p.emptyQueues = p.emptyQueues, q
		p.queues = slices.Delete(p.queues, i, i+1)
	}
}
