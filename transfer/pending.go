package transfer

import (
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// A released buffer with pending copies waits in the queues of the shard in which it was released.
// There is one queue for each stream, in the stream's order, so that polling a queue stops at the
// first copy that is not done. A slow copy delays only its own stream's queue. A buffer with copies
// on several streams is in several queues and is reclaimed with the last of them.
//
// Calls that look for memory or return statistics poll the queues. There is no callback and no
// waiting goroutine: a callback would cost a driver call for each copy, and a goroutine that takes
// the shard's lock.

// addOrphan queues a completion that no buffer holds, because a later one replaced it or the work
// uses no buffers, so that its event is closed when it is complete.
func (c *cache) addOrphan(end *completion) {
	if race.Enabled {
		return // the garbage collector closes the event
	}
	sh := c.lockShard()
	defer sh.Unlock()
	sh.addPending(end, nil)
	if sh.orphans++; sh.orphans >= maxOrphans {
		sh.pollPending()
	}
}

// maxOrphans is how many orphans a shard may queue before it polls them.
const maxOrphans = 64

// addPending queues s to wait for end; for an orphan s is nil. Goroutines record completions
// concurrently, so one may be added after a later one of its stream.
func (sh *shard) addPending(end *completion, s *slab) {
	if s != nil {
		s.waiting++
	}
	q := sh.queueOf(end.stream)
	q.entries = append(q.entries, waiting{end, s})
	// It is nearly always the last already.
	for i := len(q.entries) - 1; i > 0 && q.entries[i-1].until.seq > end.seq; i-- {
		q.entries[i], q.entries[i-1] = q.entries[i-1], q.entries[i]
	}
}

func (sh *shard) queueOf(stream uint64) *queue {
	for _, q := range sh.queues {
		if q.stream == stream {
			return q
		}
	}
	q := &queue{stream: stream}
	sh.queues = append(sh.queues, q)
	return q
}

// pollPending makes the slabs idle whose copies are all done. It never waits for copies. It does
// nothing after Close has shut the shard, because Close would take a slab that is in no list for
// one that is out.
func (sh *shard) pollPending() {
	if sh.closed {
		return
	}
	// takeDone leaves the queues consistent before the first reclaim, which may unlock the shard.
	for s := sh.takeDone(); s != nil; {
		next := s.below
		s.below = nil
		sh.reclaim(s)
		s = next
	}
}

// takeDone removes the slabs whose copies are all done from the queues, and links them through
// below, the first done first.
func (sh *shard) takeDone() (first *slab) {
	last := &first
	kept := sh.queues[:0]
	for _, q := range sh.queues {
		n := 0
		for ; n < len(q.entries); n++ {
			// The first that is not done ends the loop: later ones follow it on the same stream.
			w := q.entries[n]
			done, err := w.until.peek()
			// Close has waited for all copies; if that failed, the driver waits when it frees the
			// memory.
			if !done && !sh.closed {
				break
			}
			if w.slab == nil {
				sh.orphans--
				continue
			}
			// A device that failed may still write the memory.
			w.slab.tainted = w.slab.tainted || err != nil
			if w.slab.waiting--; w.slab.waiting == 0 {
				sh.pending--
				*last, last = w.slab, &w.slab.below
			}
		}
		// Empty queues are removed, so that closed streams leave none.
		if rest := copy(q.entries, q.entries[n:]); rest > 0 {
			clear(q.entries[rest:])
			q.entries = q.entries[:rest]
			kept = append(kept, q)
		}
	}
	clear(sh.queues[len(kept):])
	sh.queues = kept
	return first
}

// pollAll is pollPending in every shard. It also makes the excess slabs idle or evicts them. All
// shards are locked.
func (c *cache) pollAll() {
	tick := uint64(0)
	for _, sh := range c.shards {
		for s := sh.takeDone(); s != nil; {
			next := s.below
			s.below = nil
			sh.excess = append(sh.excess, s)
			s = next
		}
		tick = max(tick, sh.tick)
	}
	for _, sh := range c.shards {
		sh.tick = tick // so that the ages of different shards compare
		for _, s := range sh.excess {
			c.place(sh, s)
		}
		sh.excess = nil
	}
}

// lastPending returns a completion that is not done and holds up a slab with a completion up to
// seq, or nil. It searches each queue backwards from the last such slab. Entries before that slab's
// hold it up too, because events may be recorded in another order than their numbers, so that the
// last completion may be done first. All shards are locked.
func (c *cache) lastPending(seq uint64) *completion {
	for _, sh := range c.shards {
		for _, q := range sh.queues {
			holdsUp := false
			for _, w := range slices.Backward(q.entries) {
				holdsUp = holdsUp || w.slab != nil && w.until.seq <= seq
				if !holdsUp {
					continue
				}
				if done, _ := w.until.peek(); !done {
					return w.until
				}
			}
		}
	}
	return nil
}

// recordEnd records an event after everything that stream has queued.
func (p *Pool) recordEnd(stream device.Stream) (*completion, error) {
	ev, err := p.dev.NewEvent(device.EventOptions{})
	if err != nil {
		return nil, err
	}
	end, err := p.record(stream, ev)
	if err == nil {
		p.cache.addOrphan(end)
	}
	return end, err
}
