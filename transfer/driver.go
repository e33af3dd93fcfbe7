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

// pinned is the driver's side of a pool: the driver calls, their statistics, and the list of all
// slabs. No lock is held during a driver call, because it is slow and may wait for the device. The
// size of an allocation is admitted before the call (limit.go). Afterwards the memory that the
// driver returned, even if it is not the requested size, counts as held until the driver has freed
// it.
type pinned struct {
	dev      device.Device
	limit    int64 // Config.MaxBytes; 0: none
	observer Observer

	mu                  sync.Mutex    // taken after the shards', never held during a driver call
	first               *slab         // of the list of all slabs
	registered          memcache.Stat // bytes
	held                memcache.Stat // bytes that the driver has allocated and not freed
	allocating          int64         // bytes that are being allocated
	freeing             int64         // bytes of held that are being freed
	freed               chan struct{} // closed after a free; nil without waiters
	allocTime, freeTime DurationStat
	faults              int64 // of the accounting
	parked              error // of a free that no call could return
}

// start notifies the observer, without a lock, that a driver call begins. The returned function
// reports its end.
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

// alloc allocates memory from the driver. If MaxBytes forbids it, alloc may wait for pending frees.
func (p *pinned) alloc(ctx context.Context, size int64) ([]byte, error) {
	if err := p.admit(ctx, size); err != nil {
		return nil, err
	}
	end := p.start(ctx, OpPinnedAlloc, size)
	begin := time.Now()
	mem, err := p.dev.AllocPinned(size)
	took := time.Since(begin)
	// The driver's result is checked: it may be too small, or come with an error.
	mem = mem[:min(int64(len(mem)), size)]
	if err != nil {
		mem = nil
	} else if int64(len(mem)) < size {
		err = fmt.Errorf("the driver of %s returned %d bytes of pinned memory instead of %d, and no error", p.dev.Name(), len(mem), size)
	}
	end(err)
	p.mu.Lock()
	// The bytes change from being allocated to held in one step, so that the limit holds at each
	// moment.
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
	// The memory is too small to use, so it is freed.
	case cap(mem) > 0:
		return nil, errors.Join(err, p.free(ctx, mem))
	default:
		return nil, err
	}
}

// freeAll frees evicted slabs. The first error is parked.
func (p *pinned) freeAll(ctx context.Context, victims []*slab) {
	for _, s := range victims {
		if err := p.free(ctx, s.mem); err != nil {
			p.mu.Lock()
			p.park(err)
			p.mu.Unlock()
		}
	}
}

// free frees pinned memory that counts as freeing. Memory that the driver refuses to free still
// counts as held. Its state is unknown, so it is neither used nor freed again.
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
	// Also after an error: waiters must notice that the call has ended.
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
	return err
}

// park keeps an error that no call can return now, unless one is already parked. p.mu is held.
func (p *pinned) park(err error) {
	if p.parked == nil {
		p.parked = err
	}
}

// unpark returns the parked error and clears it.
func (p *pinned) unpark() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	err := p.parked
	p.parked = nil
	return err
}

// link adds the slab to the list of all.
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

// up raises a statistic and its peak. The statistic's lock is held.
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

// broken reports wrong accounting, which is a bug of this package. Builds with the tag invariants
// panic; others log it once, count it and park the error. p.mu is held.
func (p *pinned) broken(count string, value int64, err error) {
	err = fmt.Errorf("transfer: the accounting of the pool of %s is broken: %w", p.dev.Name(), err)
	if invariants.Enabled {
		panic(err)
	}
	p.faults++
	accounting.Broken("pinned pool of "+p.dev.Name(), count, value)
	p.park(err)
}
