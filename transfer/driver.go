package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// pinned is the driver's pinned memory of a pool: its calls, what is counted around them, and the list of all slabs. No
// lock is held during a call: it takes long, and may wait for the device. Before an allocation its size is admitted
// (limit.go); afterwards what came is held, whether it is what was asked for or not, until the driver has taken it back.
type pinned struct {
	dev      device.Device
	limit    int64 // Config.MaxBytes; 0: none
	observer Observer

	mu                  sync.Mutex    // taken after the shards', and never held while the driver is asked
	first               *slab         // all of the pool's slabs
	registered          memcache.Stat // bytes
	held                memcache.Stat // bytes that the driver has allocated and not freed
	allocating          int64         // bytes that are being allocated
	freeing             int64         // bytes of held that are being freed
	freed               chan struct{} // closed when the driver has freed something; nil if nobody waits
	allocTime, freeTime DurationStat
	faults              int64 // in the accounting
	parked              error // of a free that nobody could be told about
}

// start tells the observer that a driver call begins, without a lock. The function it returns ends it.
func (p *pinned) start(ctx context.Context, op Op, bytes int64) func(error) {
	if p.observer == nil {
		return func(error) {}
	}
	e := OpInfo{Op: op, Device: p.dev.Name(), Bytes: bytes, Queued: time.Now()}
	_, o := p.observer.Start(ctx, op)
	if o == nil {
		return func(error) {}
	}
	return func(err error) {
		e.Done, e.Err = time.Now(), err
		o.End(e)
	}
}

// alloc asks the driver for memory. If MaxBytes has no room for it, it may wait for what the driver is
// freeing.
func (p *pinned) alloc(ctx context.Context, size int64) ([]byte, error) {
	if err := p.admit(ctx, size); err != nil {
		return nil, err
	}
	end := p.start(ctx, OpPinnedAlloc, size)
	begin := time.Now()
	mem, err := p.dev.AllocPinned(size)
	took := time.Since(begin)
	// A driver is not believed: it may give less than it says, or something beside an error.
	mem = mem[:min(int64(len(mem)), size)]
	if err != nil {
		mem = nil
	} else if int64(len(mem)) < size {
		err = fmt.Errorf("the driver of %s gave %d bytes of pinned memory for %d, and no error", p.dev.Name(), len(mem), size)
	}
	end(err)
	p.mu.Lock()
	// From being allocated to held in one step, so that the limit holds at each moment.
	p.allocating -= size
	p.allocTime.add(took)
	up(&p.held, int64(len(mem)))
	if err != nil {
		p.freeing += int64(len(mem))
	}
	p.mu.Unlock()
	switch {
	case err == nil:
		return mem[:size:size], nil
	// What came is too little to use, and goes back.
	case cap(mem) > 0:
		return nil, errors.Join(err, p.free(ctx, mem))
	default:
		return nil, err
	}
}

// freeAll gives slabs that were evicted to the driver. The first error is parked.
func (p *pinned) freeAll(ctx context.Context, victims []*slab) {
	for _, s := range victims {
		if err := p.free(ctx, s.mem); err != nil {
			p.mu.Lock()
			p.park(err)
			p.mu.Unlock()
		}
	}
}

// free frees pinned memory that counts as freeing. What the driver refuses stays counted as
// held: nobody knows what has become of it, so it is not used again, and not freed again.
func (p *pinned) free(ctx context.Context, mem []byte) error {
	size := int64(len(mem))
	end := p.start(ctx, OpPinnedFree, size)
	begin := time.Now()
	err := p.dev.FreePinned(mem)
	took := time.Since(begin)
	end(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.freeTime.add(took)
	p.freeing -= size
	if err == nil {
		p.down(&p.held, size, "held bytes")
	}
	// Also after an error: waiters must see that the call failed.
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
	return err
}

// park keeps an error that nobody can be told about now, unless there is one. p.mu is held.
func (p *pinned) park(err error) {
	if p.parked == nil {
		p.parked = err
	}
}

// unpark returns the parked error, once.
func (p *pinned) unpark() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.parked
	p.parked = nil
	return err
}

// link puts the slab in the list of all.
func (p *pinned) link(s *slab) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.next = p.first; s.next != nil {
		s.next.prev = s
	}
	p.first = s
	if s.registered {
		up(&p.registered, s.size())
	}
}

// unlink undoes link.
func (p *pinned) unlink(s *slab) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.prev != nil {
		s.prev.next = s.next
	} else {
		p.first = s.next
	}
	if s.next != nil {
		s.next.prev = s.prev
	}
	s.next, s.prev = nil, nil
	if s.registered {
		p.down(&p.registered, s.size(), "registered bytes")
	}
}

// up raises a statistic and its peak. Whatever guards the statistic is locked.
func up(s *memcache.Stat, n int64) {
	s.Current += n
	s.Allocated += n
	s.Peak = max(s.Peak, s.Current)
}

// down lowers a statistic. p.mu is held.
func (p *pinned) down(s *memcache.Stat, n int64, name string) {
	s.Current -= n
	s.Freed += n
	if s.Current < 0 {
		p.broken(name, s.Current, fmt.Errorf("%s fell to %d", name, s.Current))
	}
}

// broken reports that the accounting is wrong, which is a mistake of this package: builds with the
// tag invariants panic, others log it once, count it and park the error. p.mu is held.
func (p *pinned) broken(count string, value int64, err error) {
	err = fmt.Errorf("transfer: the accounting of the pool of %s is broken: %w", p.dev.Name(), err)
	if invariants.Enabled {
		panic(err)
	}
	p.faults++
	accounting.Broken("pinned pool of "+p.dev.Name(), count, value)
	p.park(err)
}
