package transfer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
)

// A Get tries, in this order, what costs more each time:
//
//	take            its own shard's idle slabs, then those whose copies are found done: one lock
//	takeElsewhere   the shards that nobody has locked, one after the other: no waiting
//	steal           all locks; takes an idle slab wherever it is, and raises the peaks if that is a new maximum
//	rebalance       all locks; polls every copy, and gives what is over the budget to the driver; then steal again
//	grow            the driver, which takes longer than all of it; if it has no memory, everything cached goes back first
//
// The first two serve nearly every Get of a program that has run for a while. What they hand out
// must fit the shard's quotas of the peaks (peaks.go); where it does not, the others follow, even
// if the shard has an idle slab.

// Get returns a buffer of bytes bytes of pinned memory, and keeps it out until [Buffer.Release].
// Its contents are undefined. Cached memory is used if all copies that used it are done, otherwise
// the driver allocates (at most 12.5 % more than was asked for above 512 bytes, at most 63 bytes
// more below); if it can't, or Config.MaxBytes forbids it, the pool gives back what it has cached,
// after the copies that still use that, and tries once more. Where goroutines on several processors
// take their memory from each other all the time, it allocates up to one buffer more for each, if
// those are small beside the budget.
//
// 0 bytes give the empty [Buffer], which touches nothing and counts nowhere. Sizes that are
// negative or over 64 TiB wrap [ErrRange].
func (p *Pool) Get(ctx context.Context, bytes int64) (Buffer, error) {
	if invariants.Enabled {
		defer p.verify()
	}
	if bytes < 0 || bytes > maxBytes {
		return Buffer{}, fmt.Errorf("transfer: Get of %d bytes: %w: want 0 to %d", bytes, ErrRange, int64(maxBytes))
	}
	if err := checkContext("Get", ctx); err != nil {
		return Buffer{}, err
	}
	if bytes == 0 {
		if p.closed.Load() {
			return Buffer{}, p.closedError("Get")
		}
		return Buffer{}, nil
	}
	// From here to the end of getSlow the slab belongs to this goroutine as soon as it is found, and counts as out.
	class, size := classOf(bytes)
	sh := p.lockShard()
	s, unbalanced := sh.take(class, bytes)
	sh.mu.Unlock()
	passedOver := false
	if s == nil && !unbalanced {
		s, unbalanced, passedOver = p.takeElsewhere(class, bytes)
	}
	if s == nil || unbalanced {
		var err error
		if s, err = p.getSlow(ctx, sh, s, unbalanced, passedOver, class, size, bytes); err != nil {
			return Buffer{}, err
		}
	}
	return s.handOut(bytes), nil
}

// take hands out an idle slab of the shard, the last that was released, since its lines may still
// be in a cache of the processor; or nil. unbalanced says that the caller must rebalance. The shard
// is locked.
func (sh *shard) take(class int, requested int64) (s *slab, unbalanced bool) {
	if sh.closed {
		return nil, false
	}
	// Polling asks the driver, so it is for when the cache has nothing.
	if sh.idle[class] == nil && len(sh.queues) > 0 {
		sh.pollPending()
		unbalanced = sh.needsRebalance()
	}
	s = sh.idle[class]
	if s == nil {
		return nil, unbalanced
	}
	d := handOutDelta(s.size(), requested)
	// Beyond a quota the peaks may rise, which takes all locks: steal does that.
	if !sh.fits(&d) {
		return nil, unbalanced
	}
	sh.removeIdle(s)
	sh.apply(&d)
	sh.hits++
	return s, unbalanced
}

// takeElsewhere is take from a shard that nobody has locked. It waits for none: a goroutine that
// waits wakes on another processor, and misses what it released on this one. passedOver says that
// it found nothing, but passed over some.
func (p *Pool) takeElsewhere(class int, requested int64) (s *slab, unbalanced, passedOver bool) {
	for _, sh := range p.shards {
		if !sh.mu.TryLock() {
			passedOver = true
			continue
		}
		s, unbalanced = sh.take(class, requested)
		sh.mu.Unlock()
		if s != nil || unbalanced {
			return s, unbalanced, false
		}
	}
	return nil, false, passedOver
}

// getSlow finds memory in other shards, or asks the driver, unless s has been found. It holds the
// pool's gate, so that Close waits for it, and no lock. unbalanced says that it must rebalance,
// passedOver that a locked shard was passed over.
func (p *Pool) getSlow(ctx context.Context, sh *shard, s *slab, unbalanced, passedOver bool, class int, size, bytes int64) (*slab, error) {
	if !p.gate.Enter() {
		if s != nil {
			return s, nil // the pool closes, and counts it as out
		}
		return nil, p.closedError("Get")
	}
	defer p.gate.Leave()
	extra := false
	if s == nil && !unbalanced {
		s, extra = p.steal(sh, class, size, bytes, passedOver)
	}
	// An allocation that would have to wait, or fails, is no loss: the buffer of another processor does.
	if extra {
		if more, err := p.allocSlab(ctx, class, size, false); err == nil {
			p.addSlab(sh, more, bytes)
			return more, nil
		}
	}
	// What is found done by now may serve this Get. What is over the budget is this Get's to free, even if it has a slab.
	if s == nil || unbalanced {
		p.rebalance(ctx)
	}
	if s == nil {
		s, _ = p.steal(sh, class, size, bytes, false)
	}
	if s != nil {
		return s, nil
	}
	s, err := p.grow(ctx, class, size)
	if err != nil {
		return nil, fmt.Errorf("transfer: Get of %d bytes: %w", bytes, err)
	}
	p.addSlab(sh, s, bytes)
	return s, nil
}

// steal is take from any shard, also where that raises a peak. extra says that one slab more is
// better: processors that have fewer than one each between them take them from each other all the
// time. It locks all shards.
func (p *Pool) steal(sh *shard, class int, size, requested int64, passedOver bool) (s *slab, extra bool) {
	p.lockAll()
	defer p.unlockAll()
	if passedOver && p.needsExtraSlab(class, size) {
		return nil, true
	}
	// The own shard comes first: there may be an idle slab that only lacked a quota.
	from := sh
	for i := 0; from.idle[class] == nil; i++ {
		if i == len(p.shards) {
			return nil, false
		}
		from = p.shards[i]
	}
	s = from.idle[class]
	from.removeIdle(s)
	d := handOutDelta(s.size(), requested)
	sh.apply(&d)
	sh.hits++
	p.raisePeaks(sh)
	return s, false
}

// manyLostRaces is how many Gets find, within a moment each, that others were faster, before there
// is a slab more.
const manyLostRaces = 4

// needsExtraSlab reports whether Gets find nothing again and again, for others are faster, where
// not every processor has a slab to itself, and one more is small beside the budget. All shards are
// locked.
//
// Without it, where there were fewer buffers than processors, sixteen goroutines were sixteen times
// as fast as one or only two to seven times, as chance had it; with it they are sixteen times. What
// it costs is up to one buffer more for each processor than a program has out at a time, each an
// eighth of a shard's part of the budget at most.
func (p *Pool) needsExtraSlab(class int, size int64) bool {
	now := time.Now()
	if p.lostRaces++; now.Sub(p.lastLostRace) > moment {
		p.lostRaces = 0
	}
	p.lastLostRace = now
	if p.lostRaces < manyLostRaces || 8*size > p.budget/int64(len(p.shards)) {
		return false
	}
	p.lostRaces = 0
	idle := 0
	for _, sh := range p.shards {
		for s := sh.idle[class]; s != nil; s = s.below {
			idle++
		}
	}
	return 2*idle < len(p.shards)
}

// grow asks the driver for a slab, again after everything cached was given back if there is no
// memory, or no room within MaxBytes.
func (p *Pool) grow(ctx context.Context, class int, size int64) (*slab, error) {
	s, err := p.allocSlab(ctx, class, size, true)
	if errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, ErrLimit) {
		if flushErr := p.flush(ctx); flushErr != nil {
			return nil, errors.Join(err, flushErr)
		}
		s, err = p.allocSlab(ctx, class, size, true)
	}
	return s, err
}

// addSlab makes a new slab one of the pool's, which is out. Everything is counted at once: whoever
// looks finds the allocated bytes to be the active and the cached ones.
func (p *Pool) addSlab(sh *shard, s *slab, requested int64) {
	p.lockAll()
	defer p.unlockAll()
	d := handOutDelta(s.size(), requested)
	sh.apply(&d)
	p.raisePeaks(sh)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.link(s)
	up(&p.allocations, 1)
	up(&p.allocatedBytes, s.size())
	p.misses++
}
