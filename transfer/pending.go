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
	p.mu.Lock()
	defer p.mu.Unlock()
	p.enqueue(m, nil)
	if p.forgotten++; p.forgotten >= maxForgotten {
		p.collect()
	}
}

// maxForgotten is how many marks without a slab may be queued before they are looked at.
const maxForgotten = 64

// enqueue lets s wait for m.
func (p *Pool) enqueue(m *mark, s *slab) {
	if s != nil {
		s.waiting++
	}
	q := p.queueOf(m.stream)
	q.entries = append(q.entries, waiting{m, s})
	for i := len(q.entries) - 1; i > 0 && q.entries[i-1].mark.seq > m.seq; i-- {
		q.entries[i], q.entries[i-1] = q.entries[i-1], q.entries[i]
	}
}

func (p *Pool) queueOf(stream uint64) *queue {
	for _, q := range p.queues {
		if q.stream == stream {
			return q
		}
	}
	q := &queue{stream: stream}
	p.queues = append(p.queues, q)
	return q
}

// collect makes the slabs idle whose copies are all done. It never waits.
func (p *Pool) collect() {
	kept := p.queues[:0]
	for _, q := range p.queues {
		n := 0
		for ; n < len(q.entries); n++ {
			w := q.entries[n]
			done, err := w.mark.peek()
			if !done {
				break
			}
			if w.slab == nil {
				p.forgotten--
				continue
			}
			w.slab.tainted = w.slab.tainted || err != nil
			if w.slab.waiting--; w.slab.waiting == 0 {
				p.stats.Pending--
				p.retire(w.slab)
			}
		}
		if rest := copy(q.entries, q.entries[n:]); rest > 0 {
			clear(q.entries[rest:])
			q.entries = q.entries[:rest]
			kept = append(kept, q)
		}
	}
	clear(p.queues[len(kept):])
	p.queues = kept
}

// retire puts a slab that nothing uses into the list of its class. If a copy failed, what the device does
// with the memory is unknown, and it goes back to the driver instead.
func (p *Pool) retire(s *slab) {
	if s.tainted {
		p.tainted = append(p.tainted, s)
		return
	}
	p.clock++
	s.since = p.clock
	p.idle[s.class] = append(p.idle[s.class], s)
}

// last is a mark that slabs wait for, the last one of its stream that is not after seq; or nil.
func (p *Pool) last(seq uint64) *mark {
	for _, q := range p.queues {
		for _, w := range slices.Backward(q.entries) {
			if w.slab != nil && w.mark.seq <= seq {
				return w.mark
			}
		}
	}
	return nil
}
