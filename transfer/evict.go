package transfer

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
)

// What leaves the pool goes to the driver in two steps. Evicting takes a slab off the books, with
// all shards locked, and puts it in Pool.evicted. Freeing (freeAll) happens later without any lock,
// since the driver takes its time, and may wait for its whole device. In between the bytes are no
// longer allocated, but still held: Config.MaxBytes limits those.

// EmptyCache gives all cached memory back to the driver. It waits for the copies that released
// buffers wait for; when ctx ends first, what those use stays. It returns also the error of an
// earlier free that nobody could be told about.
func (p *Pool) EmptyCache(ctx context.Context) error {
	if invariants.Enabled {
		defer p.verify()
	}
	if err := p.enter(ctx, "EmptyCache"); err != nil {
		return err
	}
	defer p.gate.Leave()
	if err := errors.Join(p.flush(ctx), p.unpark()); err != nil {
		return fmt.Errorf("transfer: EmptyCache: %w", err)
	}
	return nil
}

// flush frees what is idle, waits for what is pending, and frees that too. It waits for what was
// released before it began, and for nothing later: else a program that goes on copying would hold
// it up for ever. Between two waits it holds no lock.
func (p *Pool) flush(ctx context.Context) error {
	// Completions are numbered as they are recorded: what has a higher number was queued after this call began.
	now := p.recorded.Load()
	for {
		victims, wait := p.drain(now)
		p.freeAll(ctx, victims)
		if wait == nil {
			return nil
		}
		if err := wait.quietWait(ctx); err != nil && ctx.Err() != nil {
			return err
		}
	}
}

// drain evicts all idle slabs, and returns them for the driver, and a completion that holds up
// others and is not after seq, if there is one.
func (p *Pool) drain(seq uint64) (victims []*slab, wait *completion) {
	p.lockAll()
	defer p.unlockAll()
	wait = p.lastPending(seq) // if there is none, pollAll finds all done
	p.pollAll()
	p.evictIdle()
	return p.takeEvicted(), wait
}

// evictIdle evicts all idle slabs. All shards are locked.
func (p *Pool) evictIdle() {
	for _, sh := range p.shards {
		for s := sh.oldest; s != nil; s = sh.oldest {
			sh.removeIdle(s)
			p.evict(s)
		}
	}
}

// oldest finds the slab that was not used for longest; there is one. Shards count time by their own
// ticks, which pollAll brings together, so it is about the oldest.
func (p *Pool) oldest() (from *shard, s *slab) {
	for _, sh := range p.shards {
		if o := sh.oldest; o != nil && (s == nil || o.since < s.since) {
			from, s = sh, o
		}
	}
	return from, s
}

// evictActive is evict of a slab that counts as active, as it has no place among the idle ones.
func (p *Pool) evictActive(sh *shard, s *slab) {
	sh.used[gaugeActiveBytes] -= s.size()
	p.evict(s)
}

// evict takes a slab from the pool's allocations. Its bytes are held until the driver has freed
// them. All shards are locked.
func (p *Pool) evict(s *slab) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unlink(s)
	p.down(&p.allocations, 1, "allocations")
	p.down(&p.allocatedBytes, s.size(), "allocated bytes")
	p.evicted = append(p.evicted, s)
}

// takeEvicted returns what was evicted; the caller frees it. All shards are locked.
func (p *Pool) takeEvicted() []*slab {
	victims := p.evicted
	p.evicted = nil
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range victims {
		p.freeing += s.size()
	}
	return victims
}
