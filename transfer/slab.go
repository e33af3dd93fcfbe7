package transfer

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/internal/race"
)

// slab is one pinned allocation, or one registered slice. It belongs to the buffer that is out, or to a shard.
type slab struct {
	pool       *Pool
	mem        []byte
	class      int
	registered bool // it is a Go slice of the caller
	pinner     *runtime.Pinner

	// serial is the generation of the handles: odd while a buffer is out. A handle with another one is stale.
	serial atomic.Uint64

	mu       sync.Mutex // of the buffer that is out
	uses     []use
	queueing int  // copies that are being queued
	writing  bool // if there is one, it writes the buffer
	tainted  bool // a copy failed, or nothing says when it is done: the memory is not used again

	// Guarded by the lock of a shard.
	above, below *slab         // in the stack of idle ones of its class
	newer, older *slab         // among all idle ones
	since        uint64        // the shard's tick when it became idle
	completions  []*completion // of the copies that its last owner queued
	waiting      int           // how many of them are in queues

	next, prev *slab // all slabs of the pool, guarded by its lock

	_ [64]byte // the next slab is not in this one's last cache line
}

func (s *slab) size() int64 { return int64(len(s.mem)) }

// handOut begins a buffer.
func (s *slab) handOut(bytes int64) Buffer {
	if race.Enabled {
		for _, end := range s.completions { // the copies of the last owner, which are done
			end.done()
		}
	}
	clear(s.completions)
	s.completions = s.completions[:0]
	return Buffer{slab: s, serial: s.serial.Add(1), bytes: bytes}
}

func (p *Pool) link(s *slab) {
	if s.next = p.first; s.next != nil {
		s.next.prev = s
	}
	p.first = s
}

// unlink undoes link. The pool is locked.
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

// allocSlab asks the driver for a slab, for addSlab. If MaxBytes has no room for it, it may wait for memory that the driver is
// freeing.
func (p *Pool) allocSlab(ctx context.Context, class int, size int64, wait bool) (*slab, error) {
	if err := p.admit(ctx, size, wait); err != nil {
		return nil, err
	}
	end := p.start(ctx, OpPinnedAlloc, size)
	begin := time.Now()
	mem, err := p.dev.AllocPinned(size)
	took := time.Since(begin)
	mem = mem[:min(int64(len(mem)), size)]
	if err != nil {
		mem = nil
	} else if int64(len(mem)) < size {
		err = fmt.Errorf("the driver of %s gave %d bytes of pinned memory for %d, and no error", p.dev.Name(), len(mem), size)
	}
	end(err)
	p.mu.Lock()
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

// freePinned frees pinned memory that counts as freeing. What the driver refuses stays counted as held: nobody knows what has
// become of it, so it is not used again, and not freed again.
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
	if p.freed != nil {
		close(p.freed)
		p.freed = nil
	}
	return err
}
