package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/internal/race"
)

// A Get tries these sources in the order of their cost:
//
//	shard.takeAndUnlock   its own shard: idle slabs, then slabs found done by polling; one lock
//	cache.search          the other shards one after another, unlocked ones first
//	pinned.alloc          the driver, the slowest; if it has no memory, after freeing the cache
//
// The first serves nearly every Get of a program that has run for a while.

// Get returns a buffer of bytes bytes of pinned memory, which the caller owns until
// [Buffer.Release]. Its contents are undefined. Get uses cached memory if all copies that used it
// are done. Otherwise the driver allocates, at most 12.5 % more than was asked for above 512 bytes
// and at most 63 bytes more below. If the driver has no memory, or Config.MaxBytes forbids it, the
// pool frees what it has cached, after the copies that still use it, and tries again. A Get that
// runs concurrently with Releases and other Gets may ask the driver even if another order would
// have served all of them from the cache.
//
// For 0 bytes it returns the empty [Buffer], which uses no memory and counts in no statistic. Sizes
// that are negative or over 64 TiB wrap [ErrRange].
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

// getSlow finds memory in other shards or asks the driver, unless s is not nil. It holds the pool's
// gate, so that Close waits for it, but no lock.
func (p *Pool) getSlow(ctx context.Context, own *shard, s *slab, class int, size, bytes int64) (*slab, error) {
	if !p.gate.Enter() {
		if s == nil {
			return nil, p.closedError("Get")
		}
		return s, nil // Close counts it as out
	}
	defer p.gate.Leave()
	if s == nil {
		s = p.cache.search(own, class, bytes)
	}
	// This Get frees what exceeds the limits, even if it has a slab. Slabs that trim makes idle may
	// serve this Get.
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

// handOut begins a buffer. The caller is the only owner of the slab, which is new or was taken from
// a shard.
func (s *slab) handOut(bytes int64) Buffer {
	if race.Enabled {
		for _, end := range s.completions { // of the last owner's copies, which are done
			if _, err := end.done(); err != nil {
				end.done() // retry: a failed query orders nothing
			}
		}
	}
	clear(s.completions)
	s.completions = s.completions[:0]
	return Buffer{slab: s, serial: s.serial.Add(1), bytes: bytes}
}
