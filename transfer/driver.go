package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// The calls of the driver for pinned memory, and what is counted around them. No lock is held
// during a call: it takes long, and may wait for the device. Before an allocation its size is
// admitted (limit.go); afterwards what came is held, whether it is what was asked for or not, until
// the driver has taken it back.

// allocSlab asks the driver for a slab, for addSlab. If MaxBytes has no room for it, it may wait
// for memory that the driver is freeing.
func (p *Pool) allocSlab(ctx context.Context, class int, size int64, wait bool) (*slab, error) {
	if err := p.admit(ctx, size, wait); err != nil {
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
		return &slab{pool: p, mem: mem[:size:size], class: class}, nil
	// What came is too little to use, and goes back.
	case cap(mem) > 0:
		return nil, errors.Join(err, p.freePinned(ctx, mem))
	default:
		return nil, err
	}
}

// freeAll gives slabs that were evicted to the driver. The first error is parked.
func (p *Pool) freeAll(ctx context.Context, victims []*slab) {
	for _, s := range victims {
		if err := p.freePinned(ctx, s.mem); err != nil {
			p.mu.Lock()
			p.park(err)
			p.mu.Unlock()
		}
	}
}

// freePinned frees pinned memory that counts as freeing. What the driver refuses stays counted as
// held: nobody knows what has become of it, so it is not used again, and not freed again.
func (p *Pool) freePinned(ctx context.Context, mem []byte) error {
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
	// Also after an error: who waits must see that nothing came of it.
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
	return err
}
