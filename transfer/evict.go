package transfer

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/peaks"
)

// What leaves the pool goes to the driver in two steps. Evicting takes a slab off the books, with
// all shards locked, and puts it in cache.evicted. Freeing (freeAll) happens later without any lock,
// since the driver takes its time, and may wait for its whole device. In between the bytes are no
// longer allocated, but still held: Config.MaxBytes limits those.

// flush frees what is idle, waits for what is pending, and frees that too. It waits for what was
// released before it began, and for nothing later: else a program that goes on copying would hold
// it up for ever. Between two waits it holds no lock.
func (c *cache) flush(ctx context.Context, seq uint64) error {
	for {
		victims, wait := c.drain(seq)
		c.pinned.freeAll(ctx, victims)
		if wait == nil {
			return nil
		}
		// On a device that failed nothing runs any more.
		if err := wait.quietWait(ctx); err != nil && !errors.Is(err, device.ErrSticky) {
			return err
		}
	}
}

// drain evicts all idle slabs, and returns them for the driver, and a completion that holds up
// others and is not after seq, if there is one.
func (c *cache) drain(seq uint64) (victims []*slab, wait *completion) {
	c.ledger.LockAll()
	defer c.ledger.UnlockAll()
	wait = c.lastPending(seq) // if there is none, pollAll finds all done
	c.pollAll()
	c.evictIdle()
	return c.takeEvicted(), wait
}

// trim brings the cache back within its limits: it polls all copies, finds room for what a shard had none for, and frees
// what has gone for it, or has none. No lock is held.
func (c *cache) trim(ctx context.Context) {
	c.ledger.LockAll()
	c.excessive.Store(false)
	c.pollAll()
	victims := c.takeEvicted()
	c.ledger.UnlockAll()
	c.pinned.freeAll(ctx, victims)
}

// place makes s idle, which is active and in no list. What has to go for it is evicted: s itself if nothing can make room
// for it, otherwise what was not used for longest. All shards are locked.
func (c *cache) place(sh *shard, s *slab) {
	changes := idleChanges(s)
	for s.tainted || !sh.AddStopped(changes[:]...) {
		from, old := c.oldest()
		// In a class that is full no room is made: what is over it goes at once.
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

// oldest finds the slab that was not used for longest, if one is idle. Shards count time by their own
// ticks, which pollAll brings together, so it is about the oldest.
func (c *cache) oldest() (from *shard, s *slab) {
	for _, sh := range c.shards {
		if o := sh.oldest; o != nil && (s == nil || o.since < s.since) {
			from, s = sh, o
		}
	}
	return from, s
}

// evictFrom is evict of a slab that is idle.
func (c *cache) evictFrom(sh *shard, s *slab) {
	sh.removeIdle(s)
	sh.countStopped(gaugeClass+s.class, -1)
	c.evict(sh, s, gaugeCachedBytes)
}

// evict takes a slab from the pool's allocations, which counts in a gauge of bytes. They are held until the driver has
// freed them. All shards are locked.
func (c *cache) evict(sh *shard, s *slab, gauge int) {
	sh.AddStopped(peaks.Change{Gauge: gauge, N: -s.size()}, peaks.Change{Gauge: gaugeAllocations, N: -1},
		peaks.Change{Gauge: gaugeAllocatedBytes, N: -s.size()})
	c.pinned.unlink(s)
	c.evicted = append(c.evicted, s)
}

// takeEvicted returns what was evicted; the caller frees it. All shards are locked.
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
