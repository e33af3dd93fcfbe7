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

// reserve takes size bytes off the limit.
func (p *Pool) reserve(size int64) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if held := p.allocatedBytes.Current + p.reserved; p.limit > 0 && size > p.limit-held {
		return &LimitError{Requested: size, Allocated: held, Limit: p.limit}
	}
	p.reserved += size
	return nil
}

// unsettled reports whether slabs wait for settle.
func (sh *shard) unsettled() bool { return len(sh.excess)+len(sh.tainted) > 0 }

// settle finds room for what a shard had none for, and frees the rest. It polls all copies. No lock is held.
func (p *Pool) settle(ctx context.Context) {
	p.lockAll()
	p.due.Store(false)
	p.collectAll()
	tick := uint64(0)
	for _, sh := range p.shards {
		tick = max(tick, sh.tick)
	}
	var victims []*slab
	for _, sh := range p.shards {
		sh.tick = tick // so that the ages of different shards compare
		for _, s := range sh.tainted {
			victims = p.disown(sh, s, victims)
		}
		for _, s := range sh.excess {
			victims = p.place(sh, s, victims)
		}
		sh.tainted, sh.excess = nil, nil
	}
	p.unlockAll()
	p.freeAll(ctx, victims)
}

// place makes s idle. What has to go for it is added to victims: s itself if its class is full or it is larger than
// the budget, otherwise what was not used for longest. All shards are locked.
func (p *Pool) place(sh *shard, s *slab, victims []*slab) []*slab {
	if sh.slotsLeft[s.class] == 0 {
		p.lendSlot(sh, s.class)
	}
	if sh.slotsLeft[s.class] == 0 || s.size() > p.budget {
		return p.disown(sh, s, victims)
	}
	for p.lend(sh, s.size()); sh.bytesLeft < s.size(); p.lend(sh, s.size()) {
		from, old := p.oldest()
		from.remove(old)
		victims = p.disown(from, old, victims)
	}
	sh.put(s)
	return victims
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

// drain takes all idle slabs out of the pool. The caller frees them. All shards are locked.
func (p *Pool) drain() (victims []*slab) {
	for _, sh := range p.shards {
		for _, s := range append(sh.tainted, sh.excess...) {
			victims = p.disown(sh, s, victims)
		}
		sh.tainted, sh.excess = nil, nil
		for s := sh.oldest; s != nil; s = sh.oldest {
			sh.remove(s)
			victims = p.disown(sh, s, victims)
		}
	}
	return victims
}

// disown takes a cached slab off the books, before the driver gets it. All shards are locked.
func (p *Pool) disown(sh *shard, s *slab, victims []*slab) []*slab {
	sh.apply(&change{gaugeCached: -s.size()})
	p.forgetSlab(s)
	return append(victims, s)
}
