package memcache

import (
	"math"
	"slices"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// pinnedEvents are the events of one pending block, pinned so that they are not reused while a
// stream waits for them.
type pinnedEvents struct {
	block  *handout
	events []*pendingEvent
	of     []uint64 // the streams that they were recorded on
}

// endByWait ends the frees of blocks that would serve the request, after making the shard's stream
// wait on the device for the streams that use them. It selects one block, or neighbours that are
// large enough together; of several such runs, the one whose last event was recorded first. It
// returns false if there is none. Only the growth lock is held.
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

// pinServing pins the events of a run of pending blocks that would serve the request once they are
// free, or returns nil. It skips blocks whose free is still recording events, and blocks that
// another device uses.
func (s *shard) pinServing(r *request) []*pinnedEvents {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	last := make(map[*placement.Chunk]uint64) // the number of each block's last event
	// keys of the map in a fixed order, so that results are deterministic
	var order []*placement.Chunk
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
		// Runs that share their last block tie; the one of fewer blocks is better.
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

// unpin unpins the events. waited reports that the block's stream waits for them, so that they
// count as complete. It returns true if no event of the block is left and this call has removed the
// last one, not a poll: then the caller ends the block's free.
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

// unlink removes an event from its stream's queue. p.mu is held.
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
