package transfer

import (
	"context"
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
	writing  bool // the one that is being queued writes the buffer
	tainted  bool // a copy failed, or nothing says when it is done: the memory is not used again

	// Guarded by the lock of a shard.
	above, below *slab   // in the stack of idle ones of its class
	newer, older *slab   // among all idle ones
	since        uint64  // the shard's tick when it became idle
	marks        []*mark // of the copies that its last owner queued
	waiting      int     // how many of them are in queues

	next, prev *slab // all slabs of the pool, guarded by its lock

	_ [64]byte // the next slab is not in this one's last cache line
}

// use is the last copy of a buffer on one stream.
type use struct {
	stream uint64
	mark   *mark
	wrote  bool // this copy, or one before it on the stream, writes the buffer
}

func (s *slab) size() int64 { return int64(len(s.mem)) }

// handOut begins a buffer.
func (s *slab) handOut(bytes int64) Buffer {
	if race.Enabled {
		for _, m := range s.marks { // the copies of the last owner, which are done
			m.done()
		}
	}
	clear(s.marks)
	s.marks = s.marks[:0]
	return Buffer{slab: s, serial: s.serial.Add(1), bytes: bytes}
}

func (p *Pool) link(s *slab) {
	if s.next = p.first; s.next != nil {
		s.next.prev = s
	}
	p.first = s
}

// forgetSlab takes a slab off the books of allocations.
func (p *Pool) forgetSlab(s *slab) {
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
		down(&p.registered, s.size())
		return
	}
	down(&p.allocations, 1)
	down(&p.allocatedBytes, s.size())
}

// allocSlab makes a slab, which is on the books.
func (p *Pool) allocSlab(ctx context.Context, class int, size int64) (*slab, error) {
	if err := p.reserve(size); err != nil {
		return nil, err
	}
	end := p.start(ctx, OpPinnedAlloc, size)
	begin := time.Now()
	mem, err := p.dev.AllocPinned(size)
	took := time.Since(begin)
	end(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reserved -= size
	p.allocTime.add(took)
	if err != nil {
		return nil, err
	}
	s := &slab{pool: p, mem: mem, class: class}
	p.link(s)
	up(&p.allocations, 1)
	up(&p.allocatedBytes, size)
	return s, nil
}

// freeAll gives slabs to the driver. What it refuses is the pool's no more; the first error is parked.
func (p *Pool) freeAll(ctx context.Context, victims []*slab) {
	for _, s := range victims {
		end := p.start(ctx, OpPinnedFree, s.size())
		begin := time.Now()
		err := p.dev.FreePinned(s.mem)
		took := time.Since(begin)
		end(err)
		p.mu.Lock()
		p.freeTime.add(took)
		if p.parked == nil {
			p.parked = err
		}
		p.mu.Unlock()
	}
}
