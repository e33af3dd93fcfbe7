package transfer

import (
	"context"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
)

// slab is one pinned allocation. The pool's lock guards it, but for mem and class, which never change.
type slab struct {
	mem        []byte
	class      int
	owner      *Buffer // nil while it is cached
	next, prev *slab   // all slabs of the pool
	marks      []*mark // of the copies that its last owner queued
	waiting    int     // how many of them are in queues
	tainted    bool    // a copy failed, or can't be followed: it is not used again
	since      uint64  // the pool's clock when it became idle
}

func (s *slab) size() int64 { return int64(len(s.mem)) }

// acquire orders the copies of the last owner, which are done, before the new owner.
func (s *slab) acquire() {
	if race.Enabled {
		for _, m := range s.marks {
			m.done()
		}
	}
	s.marks = nil
}

func (p *Pool) link(s *slab) {
	if s.next = p.first; s.next != nil {
		s.next.prev = s
	}
	p.first = s
}

func (p *Pool) unlink(s *slab) {
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		p.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.next, s.prev = nil, nil
}

// drain takes all idle slabs out of the pool. The caller frees them.
func (p *Pool) drain() []*slab {
	victims := p.tainted
	p.tainted = nil
	for class, list := range p.idle {
		victims = append(victims, list...)
		p.idle[class] = nil
	}
	p.disown(victims)
	return victims
}

// trim takes idle slabs out of the pool until it is within its budget, the least recently used first. The
// caller frees them. What waits for copies can't go yet, so the budget may be exceeded for a while.
func (p *Pool) trim() []*slab {
	victims := p.tainted
	p.tainted = nil
	for over := p.stats.CachedBytes.Current - p.budget; over > 0; {
		var oldest *slab
		for _, list := range p.idle {
			if len(list) > 0 && (oldest == nil || list[0].since < oldest.since) {
				oldest = list[0]
			}
		}
		if oldest == nil {
			break
		}
		list := p.idle[oldest.class]
		p.idle[oldest.class] = append(list[:0], list[1:]...)
		victims = append(victims, oldest)
		over -= oldest.size()
	}
	p.disown(victims)
	return victims
}

// disown takes cached slabs off the books, before the driver gets them.
func (p *Pool) disown(victims []*slab) {
	for _, s := range victims {
		p.unlink(s)
		down(&p.stats.CachedBytes, s.size())
		down(&p.stats.Allocations, 1)
		down(&p.stats.AllocatedBytes, s.size())
	}
}

// freeAll gives slabs to the driver. What it refuses is the pool's no more; the first error is parked.
func (p *Pool) freeAll(ctx context.Context, victims []*slab) {
	for _, s := range victims {
		if err := p.freePinned(ctx, s); err != nil {
			p.mu.Lock()
			if p.parked == nil {
				p.parked = err
			}
			p.mu.Unlock()
		}
	}
}

func (p *Pool) allocPinned(ctx context.Context, size int64) ([]byte, error) {
	end := p.start(ctx, OpPinnedAlloc, size)
	begin := time.Now()
	mem, err := p.dev.AllocPinned(size)
	took := time.Since(begin)
	end(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.HostAllocs++
	p.stats.HostAllocTime += took
	return mem, err
}

func (p *Pool) freePinned(ctx context.Context, s *slab) error {
	end := p.start(ctx, OpPinnedFree, s.size())
	begin := time.Now()
	err := p.dev.FreePinned(s.mem)
	took := time.Since(begin)
	end(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats.HostFrees++
	p.stats.HostFreeTime += took
	return err
}
