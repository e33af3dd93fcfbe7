package transfer

import (
	"slices"

	"github.com/cistern-ml/cistern/internal/race"
)

// queue are released slabs that wait for copies on one stream, in the order of the copies. A slow copy
// holds up its own stream's queue and no other.
type queue struct {
	stream  uint64
	entries []waiting
}

type waiting struct {
	mark *mark
	slab *slab // nil: only the mark's event is wanted back
}

// forget takes back the event of a mark that no buffer needs any more.
func (p *Pool) forget(m *mark) {
	if race.Enabled {
		return // the garbage collector's finding it is enough
	}
	sh := p.lockShard()
	defer sh.mu.Unlock()
	sh.enqueue(m, nil)
	if sh.forgotten++; sh.forgotten >= maxForgotten {
		if sh.collect(); sh.unsettled() {
			p.due.Store(true)
		}
	}
}

// maxForgotten is how many marks without a slab may be queued before they are looked at.
const maxForgotten = 64

// enqueue lets s wait for m.
func (sh *shard) enqueue(m *mark, s *slab) {
	if s != nil {
		s.waiting++
	}
	q := sh.queueOf(m.stream)
	q.entries = append(q.entries, waiting{m, s})
	for i := len(q.entries) - 1; i > 0 && q.entries[i-1].mark.seq > m.seq; i-- {
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

// collect makes the slabs idle whose copies are all done. It never waits.
func (sh *shard) collect() {
	kept := sh.queues[:0]
	for _, q := range sh.queues {
		n := 0
		for ; n < len(q.entries); n++ {
			w := q.entries[n]
			done, err := w.mark.peek()
			if !done {
				break
			}
			if w.slab == nil {
				sh.forgotten--
				continue
			}
			w.slab.tainted = w.slab.tainted || err != nil
			if w.slab.waiting--; w.slab.waiting == 0 {
				sh.pending--
				sh.retire(w.slab)
			}
		}
		if rest := copy(q.entries, q.entries[n:]); rest > 0 {
			clear(q.entries[rest:])
			q.entries = q.entries[:rest]
			kept = append(kept, q)
		}
	}
	clear(sh.queues[len(kept):])
	sh.queues = kept
}

// collectAll is collect in every shard, and finds a place for what a shard had none for. All are locked.
func (p *Pool) collectAll() {
	tick := uint64(0)
	for _, sh := range p.shards {
		sh.collect()
		tick = max(tick, sh.tick)
	}
	for _, sh := range p.shards {
		sh.tick = tick // so that the ages of different shards compare
		for _, s := range sh.tainted {
			p.dismiss(sh, s)
		}
		for _, s := range sh.excess {
			p.place(sh, s)
		}
		sh.tainted, sh.excess = nil, nil
	}
}

// retire takes back a slab that nothing uses. If a copy failed, what the device does with the memory is unknown, and it
// goes to the driver instead.
func (sh *shard) retire(s *slab) {
	switch {
	case s.tainted:
		sh.tainted = append(sh.tainted, s)
	case sh.room(s):
		sh.put(s)
	default:
		sh.excess = append(sh.excess, s)
	}
}

// last is a mark that holds up slabs and is not done, the last one of its stream that is not after seq; or nil. An event
// may be recorded after that of a later mark, so that the last mark of all is done first. All shards are locked.
func (p *Pool) last(seq uint64) *mark {
	for _, sh := range p.shards {
		for _, q := range sh.queues {
			holdsUp := false
			for _, w := range slices.Backward(q.entries) {
				holdsUp = holdsUp || w.slab != nil && w.mark.seq <= seq
				if !holdsUp {
					continue
				}
				if done, _ := w.mark.peek(); !done {
					return w.mark
				}
			}
		}
	}
	return nil
}
