package transfer

import (
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// A released buffer whose copies are not done waits in the queues of the shard that it was released
// in: one for each stream, in the stream's order, so that polling looks at the first of each queue
// until one is not done, and at no later one. A slow copy holds up its own stream's queue and no
// other. A buffer with copies on several streams is in several queues, and is reclaimed by the
// last.
//
// Nothing waits here and no callback is registered: who looks for memory or asks for statistics
// polls. A callback of the driver for each copy would cost a driver call for each, and a
// goroutine that takes the shard's lock.

// addOrphan queues a completion that no buffer needs any more, because another took its place or
// the work uses none, so that its event is closed when it is complete.
func (c *cache) addOrphan(end *completion) {
	if race.Enabled {
		return // the garbage collector's finding it is enough
	}
	sh := c.lockShard()
	defer sh.Unlock()
	sh.addPending(end, nil)
	if sh.orphans++; sh.orphans >= maxOrphans {
		sh.pollPending()
	}
}

// maxOrphans is how many orphans a shard may queue before they are looked at.
const maxOrphans = 64

// addPending lets s wait for end; a nil s is an orphan's. Completions are recorded beside each
// other, so one may come after a later one of its stream.
func (sh *shard) addPending(end *completion, s *slab) {
	if s != nil {
		s.waiting++
	}
	q := sh.queueOf(end.stream)
	q.entries = append(q.entries, waiting{end, s})
	// Nearly always it is the last already.
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

// pollPending makes the slabs idle whose copies are all done, unless Close does: a slab in hand here would be taken for one of
// a buffer that is out. It never waits for them.
func (sh *shard) pollPending() {
	if sh.closed {
		return
	}
	// The queues are in order before the first slab is reclaimed, which may unlock the shard.
	for s := sh.takeDone(); s != nil; {
		next := s.below
		s.below = nil
		sh.reclaim(s)
		s = next
	}
}

// takeDone takes the slabs out of the queues whose copies are all done, and links them through below, the first done
// first.
func (sh *shard) takeDone() (first *slab) {
	last := &first
	kept := sh.queues[:0]
	for _, q := range sh.queues {
		n := 0
		for ; n < len(q.entries); n++ {
			// The first that is not done ends the queue: later ones follow on the same stream.
			w := q.entries[n]
			done, err := w.until.peek()
			// Close has waited for all copies, and the driver waits where that failed.
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
		// A queue that is empty goes, so that closed streams leave nothing behind.
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

// pollAll is pollPending in every shard, and finds a place for what is excessive, or evicts it. All are locked.
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

// lastPending is a completion that holds up slabs and is not done, the last one of its stream that
// is not after seq; or nil. An event may be recorded after that of a later completion, so that the
// last one of all is done first. All shards are locked.
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
