package transfer

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/peaks"
)

// Memory leaves the pool in two steps. Evicting removes a slab from the statistics and the pool's
// list, with all shards locked, and puts it in cache.evicted. Freeing (freeAll) happens later
// without a lock, because the driver call is slow and may wait for the whole device. In between the
// bytes are no longer allocated but still held, and Config.MaxBytes limits held bytes.

// flush frees idle slabs, waits for pending ones, and frees those too. It waits only for
// completions up to seq, those recorded before it began; otherwise a program that keeps copying
// would delay it for ever. It holds no lock while it waits.
func (c *cache) flush(ctx context.Context, seq uint64) error {
	for {
		victims, wait := c.drain(seq)
		c.pinned.freeAll(ctx, victims)
		if wait == nil {
			return nil
		}
		// A device that failed runs nothing any more, so there is nothing to wait for.
		if err := wait.quietWait(ctx); err != nil && !errors.Is(err, device.ErrSticky) {
			return err
		}
	}
}

// drain evicts all idle slabs and returns them for freeing. wait is a completion up to seq that a
// slab waits for, or nil.
func (c *cache) drain(seq uint64) (victims []*slab, wait *completion) {
	c.ledger.LockAll()
	defer c.ledger.UnlockAll()
	wait = c.lastPending(seq) // if it is nil, pollAll finds all of them done
	c.pollAll()
	c.evictIdle()
	return c.takeEvicted(), wait
}

// trim brings the cache back within its limits: it polls all copies, makes excess slabs idle where
// the limits allow it, and frees what they displace or what does not fit. No lock is held.
func (c *cache) trim(ctx context.Context) {
	c.ledger.LockAll()
	c.excessive.Store(false)
	c.pollAll()
	victims := c.takeEvicted()
	c.ledger.UnlockAll()
	c.pinned.freeAll(ctx, victims)
}

// place makes s idle, which was active and is in no list. To keep the limits it evicts the least
// recently used slabs, or s itself if that would not suffice. All shards are locked.
func (c *cache) place(sh *shard, s *slab) {
	changes := idleChanges(s)
	for s.tainted || !sh.AddStopped(changes[:]...) {
		from, old := c.oldest()
		// For a full class no other slab is evicted: s goes at once.
		if old == nil || s.tainted || s.size() > c.budget || c.total(gaugeClass+s.class).Current >= c.perClass {
			c.evict(sh, s, gaugeActiveBytes)
			return
		}
		c.evictFrom(from, old)
	}
	sh.pushIdle(s)
}

// evictIdle evicts all idle slabs. All shards are locked.
func (c *cache) evictIdle() {
	for _, sh := range c.shards {
		for s := sh.oldest; s != nil; s = sh.oldest {
			c.evictFrom(sh, s)
		}
	}
}

// oldest returns the least recently used idle slab, if there is one, and its shard. It is
// approximate: each shard counts its own ticks, and only pollAll synchronises them.
func (c *cache) oldest() (from *shard, s *slab) {
	for _, sh := range c.shards {
		if o := sh.oldest; o != nil && (s == nil || o.since < s.since) {
			from, s = sh, o
		}
	}
	return from, s
}

// evictFrom is evict of an idle slab.
func (c *cache) evictFrom(sh *shard, s *slab) {
	sh.removeIdle(s)
	sh.countStopped(gaugeClass+s.class, -1)
	c.evict(sh, s, gaugeCachedBytes)
}

// evict removes a slab from the pool's allocations, and its bytes from gauge, where they counted.
// The bytes stay held until the driver has freed them. All shards are locked.
func (c *cache) evict(sh *shard, s *slab, gauge int) {
	sh.AddStopped(peaks.Change{Gauge: gauge, N: -s.size()}, peaks.Change{Gauge: gaugeAllocations, N: -1},
		peaks.Change{Gauge: gaugeAllocatedBytes, N: -s.size()})
	c.pinned.unlink(s)
	c.evicted = append(c.evicted, s)
}

// takeEvicted returns the evicted slabs; the caller frees them. All shards are locked.
func (c *cache) takeEvicted() []*slab {
	victims := c.evicted
	c.evicted = nil
	c.pinned.mu.Lock()
	defer c.pinned.mu.Unlock()
	for _, s := range victims {
		c.pinned.freeing += s.size()
	}
	return victims
}
