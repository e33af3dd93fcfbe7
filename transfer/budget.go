package transfer

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
)

// The budget of cached bytes, and the slots of a class, are kept exactly without a counter that the shards share: each
// shard has a part of them, and gets more where it has too little.

// LimitError is what Get returns when it needs more than Config.MaxBytes allows, after the cache was given back. It
// wraps [ErrLimit].
type LimitError struct {
	// Requested is the size in bytes of the pinned allocation that was not made.
	Requested int64
	// Allocated is what the pool held, in bytes, and Limit what it may hold.
	Allocated, Limit int64
}

// Error gives the numbers.
func (e *LimitError) Error() string {
	return fmt.Sprintf("%v of the pool's pinned memory: %s more than the %s held would be over %s; Release buffers, or raise MaxBytes",
		ErrLimit, humanize.IBytes(uint64(e.Requested)), humanize.IBytes(uint64(e.Allocated)), humanize.IBytes(uint64(e.Limit)))
}

// Unwrap returns [ErrLimit].
func (e *LimitError) Unwrap() error { return ErrLimit }

// reserve takes size bytes off the limit, before the driver is asked for them. It may wait where memory that the driver is
// freeing would make room.
func (p *Pool) reserve(ctx context.Context, size int64, wait bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		held := p.held.Current + p.reserved
		if p.limit == 0 || size <= p.limit-held {
			p.reserved += size
			return nil
		}
		if !wait || size > p.limit-held+p.freeing {
			return &LimitError{Requested: size, Allocated: held, Limit: p.limit}
		}
		if err := p.awaitFree(ctx); err != nil {
			return err
		}
	}
}

// awaitFree waits until the driver has freed something. The pool is locked, but not meanwhile.
func (p *Pool) awaitFree(ctx context.Context) error {
	if p.freed == nil {
		p.freed = make(chan struct{})
	}
	freed := p.freed
	p.mu.Unlock()
	defer p.mu.Lock()
	select {
	case <-freed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// unsettled reports whether slabs wait for settle.
func (sh *shard) unsettled() bool { return len(sh.excess)+len(sh.tainted) > 0 }

// settle finds room for what a shard had none for, and frees the rest. It polls all copies. No lock is held.
func (p *Pool) settle(ctx context.Context) {
	p.freeAll(ctx, p.collectDoomed())
}

func (p *Pool) collectDoomed() []*slab {
	p.lockAll()
	defer p.unlockAll()
	p.due.Store(false)
	p.collectAll()
	return p.takeDoomed()
}

// place makes s idle. What has to go for it is disowned: s itself if its class is full or it is larger than the budget,
// otherwise what was not used for longest. All shards are locked.
func (p *Pool) place(sh *shard, s *slab) {
	for !p.makeIdle(sh, s) {
		if sh.slotsLeft[s.class] == 0 || s.size() > p.budget {
			p.dismiss(sh, s)
			return
		}
		from, old := p.oldest()
		from.remove(old)
		p.disown(old)
	}
}

// makeIdle puts s among the idle ones of sh, if all shards together have room. All are locked.
func (p *Pool) makeIdle(sh *shard, s *slab) bool {
	if sh.slotsLeft[s.class] == 0 {
		p.lendSlot(sh, s.class)
	}
	if s.size() <= p.budget {
		p.lend(sh, s.size())
	}
	if sh.slotsLeft[s.class] == 0 || sh.bytesLeft < s.size() {
		return false
	}
	sh.put(s)
	p.raise(sh)
	return true
}

// lend raises sh.bytesLeft towards need: by a good piece of what no shard has, else by what others don't use.
func (p *Pool) lend(sh *shard, need int64) {
	if n := min(p.bytesLeft, max(need-sh.bytesLeft, p.budget/int64(2*len(p.shards)))); sh.bytesLeft < need {
		p.bytesLeft -= n
		sh.bytesLeft += n
	}
	for _, other := range p.shards {
		if n := min(need-sh.bytesLeft, other.bytesLeft); other != sh && n > 0 {
			other.bytesLeft -= n
			sh.bytesLeft += n
		}
	}
}

func (p *Pool) lendSlot(sh *shard, class int) {
	if n := min(p.slotsLeft[class], max(1, p.slots/int32(2*len(p.shards)))); n > 0 {
		p.slotsLeft[class] -= n
		sh.slotsLeft[class] += n
		return
	}
	for _, other := range p.shards {
		if other.slotsLeft[class] > 0 {
			other.slotsLeft[class]--
			sh.slotsLeft[class]++
			return
		}
	}
}

// oldest finds the slab that was not used for longest; there is one.
func (p *Pool) oldest() (from *shard, s *slab) {
	for _, sh := range p.shards {
		if o := sh.oldest; o != nil && (s == nil || o.since < s.since) {
			from, s = sh, o
		}
	}
	return from, s
}

// drain disowns all idle slabs, and returns them for the driver, and a mark that holds up others and is not after seq, if there
// is one.
func (p *Pool) drain(seq uint64) (victims []*slab, wait *mark) {
	p.lockAll()
	defer p.unlockAll()
	wait = p.last(seq) // if there is none, collectAll finds all done
	p.collectAll()
	p.disownIdle()
	return p.takeDoomed(), wait
}

// disownIdle disowns all idle slabs. All shards are locked.
func (p *Pool) disownIdle() {
	for _, sh := range p.shards {
		for s := sh.oldest; s != nil; s = sh.oldest {
			sh.remove(s)
			p.disown(s)
		}
	}
}

// dismiss is disown of a slab that counts as active, as it has no place among the idle ones.
func (p *Pool) dismiss(sh *shard, s *slab) {
	sh.used[gaugeActive] -= s.size()
	p.disown(s)
}

// disown takes a slab from the pool's allocations. Its bytes are held until the driver has freed them. All shards are locked.
func (p *Pool) disown(s *slab) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlink(s)
	p.down(&p.allocations, 1, "allocations")
	p.down(&p.allocatedBytes, s.size(), "allocated bytes")
	p.doomed = append(p.doomed, s)
}

// takeDoomed returns what was disowned; the caller frees it. All shards are locked.
func (p *Pool) takeDoomed() []*slab {
	victims := p.doomed
	p.doomed = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range victims {
		p.freeing += s.size()
	}
	return victims
}
