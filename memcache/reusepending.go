package memcache

import (
	"math"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// pinnedEvents are the events of one pending block, kept from being used again while a stream waits for them.
type pinnedEvents struct {
	block  *handout
	events []*pendingEvent
	of     []uint64 // the streams that they were recorded on
}

// endByWait ends the frees of blocks that would serve the request: the shard's stream waits for the streams that use them, on the device. That is one
// block, or neighbours that are large enough together; of several such runs it is the one whose last event was recorded first. It is false if there is
// none. No lock but growth is held.
func (s *shard) endByWait(r *request) (ended bool, err error) {
	p := s.pending
	if p.events.Load() == 0 {
		return false, nil
	}
	run := s.pinServing(r)
	for _, pinned := range run {
		for i, e := range pinned.events {
			if err == nil && pinned.of[i] != s.id {
				err = s.stream.Wait(e.event)
			}
		}
		if p.unpin(pinned, err == nil) {
			p.complete(pinned.block, false)
		}
	}
	return len(run) > 0 && err == nil, err
}

// pinServing pins the events of a run of pending blocks that would serve the request once they are free, or returns nil. Blocks whose free is still
// recording events, and those that another device uses, are left alone.
func (s *shard) pinServing(r *request) []*pinnedEvents {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	last := make(map[*placement.Chunk]uint64) // the number of each block's last event
	var order []*placement.Chunk              // of the map, so that the same calls have the same outcome
	for _, q := range p.queues {
		for e := q.head; e != nil; e = e.next {
			m := e.handout.chunk
			if _, seen := last[m]; !seen {
				order = append(order, m)
			}
			if e.foreign != nil || e.handout.recording {
				last[m] = math.MaxUint64
			} else {
				last[m] = max(last[m], e.number)
			}
		}
	}
	pending := func(m *placement.Chunk) bool { n, ok := last[m]; return ok && n < math.MaxUint64 }
	var best, used []*placement.Chunk
	earliest := uint64(math.MaxUint64)
	for _, m := range order {
		run := m.Run(&r.Want, s.shards.rules(), pending, used[:0])
		if run == nil {
			continue
		}
		number := uint64(0)
		for _, m := range run {
			number = max(number, last[m])
		}
		// Runs that share their last block end alike: the one of fewer blocks.
		if number < earliest || number == earliest && len(run) < len(best) {
			best, used, earliest = run, best, number
		} else {
			used = run
		}
	}
	run := make([]*pinnedEvents, 0, len(best))
	for _, m := range best {
		pinned := new(pinnedEvents)
		for _, q := range p.queues {
			for e := q.head; e != nil; e = e.next {
				if e.handout.chunk == m {
					e.pins++
					pinned.block, pinned.events, pinned.of = e.handout, append(pinned.events, e), append(pinned.of, q.stream)
				}
			}
		}
		run = append(run, pinned)
	}
	return run
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
