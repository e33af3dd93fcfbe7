package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

// A Get tries, in this order, what costs more each time:
//
//	shard.takeAndUnlock   its own shard's idle slabs, then those whose copies are found done: one lock
//	cache.search          the other shards, one after the other, first those that nobody has locked
//	pinned.alloc          the driver, which takes longer than all of it; if it has no memory, everything cached goes back first
//
// The first serves nearly every Get of a program that has run for a while.

// Get returns a buffer of bytes bytes of pinned memory, and keeps it out until [Buffer.Release].
// Its contents are undefined. Cached memory is used if all copies that used it are done, otherwise
// the driver allocates (at most 12.5 % more than was asked for above 512 bytes, at most 63 bytes
// more below); if it can't, or Config.MaxBytes forbids it, the pool gives back what it has cached,
// after the copies that still use that, and tries once more. A Get beside Releases and other Gets may ask the
// driver though there would have been enough for all of them in another order.
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
	class, size := classOf(bytes)
	sh := p.cache.lockShard()
	s := sh.takeAndUnlock(class, bytes)
	if s == nil || p.cache.excessive.Load() {
		var err error
		if s, err = p.getSlow(ctx, sh, s, class, size, bytes); err != nil {
			return Buffer{}, err
		}
	}
	return s.handOut(bytes), nil
}

// getSlow finds memory in other shards, or asks the driver, unless s has been found. It holds the
// pool's gate, so that Close waits for it, and no lock.
func (p *Pool) getSlow(ctx context.Context, own *shard, s *slab, class int, size, bytes int64) (*slab, error) {
	if !p.gate.Enter() {
		if s == nil {
			return nil, p.closedError("Get")
		}
		return s, nil // the pool closes, and counts it as out
	}
	defer p.gate.Leave()
	if s == nil {
		s = p.cache.search(own, class, bytes)
	}
	// What is over the limits is this Get's to free, even if it has a slab; what finds a place for it may serve this Get.
	if p.cache.excessive.Load() {
		if p.cache.trim(ctx); s == nil {
			s = p.cache.search(own, class, bytes)
		}
	}
	if s != nil {
		return s, nil
	}
	mem, err := p.pinned.alloc(ctx, size)
	if errors.Is(err, device.ErrOutOfMemory) || errors.Is(err, ErrLimit) {
		if flushErr := p.flush(ctx); flushErr != nil {
			return nil, fmt.Errorf("transfer: Get of %d bytes: %w", bytes, errors.Join(err, flushErr))
		}
		mem, err = p.pinned.alloc(ctx, size)
	}
	if err != nil {
		return nil, fmt.Errorf("transfer: Get of %d bytes: %w", bytes, err)
	}
	s = &slab{pool: p, mem: mem, class: class}
	own.putNew(s, bytes)
	return s, nil
}

// handOut begins a buffer. Nobody else has the slab: it was taken from a shard, or is new.
func (s *slab) handOut(bytes int64) Buffer {
	if race.Enabled {
		for _, end := range s.completions { // the copies of the last owner, which are done
			if _, err := end.done(); err != nil {
				end.done() // a query that failed orders nothing
			}
		}
	}
	clear(s.completions)
	s.completions = s.completions[:0]
	return Buffer{slab: s, serial: s.serial.Add(1), bytes: bytes}
}
