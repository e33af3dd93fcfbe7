package transfer

import (
	"cmp"
	"fmt"
	"slices"
)

// Builds with the tag invariants compare all statistics with the slabs after every operation: the
// lists of each shard, the ledger, and the bytes of each kind. So a random test stops at the
// operation that breaks an invariant, not at one that shows it later. An audit locks all shards and
// visits every slab, so large pools are audited after some of the operations only, which keeps the
// cost per operation constant.

// slabsPerOperation is how many slabs the audits visit per operation, on average. A pool with fewer
// slabs is audited after every operation.
const slabsPerOperation = 64

// verify panics if the pool's structures are inconsistent. Builds with the tag invariants call it
// at the end of every operation.
func (p *Pool) verify() {
	if p.unverified.Add(-1) > 0 {
		return
	}
	slabs, err := p.audit()
	if err != nil {
		panic(fmt.Sprintf("transfer: an invariant is broken: %v", err))
	}
	p.unverified.Store(slabs / slabsPerOperation)
}

// audit compares the pool's statistics with its shards and its list of slabs, and returns how many
// slabs it visited.
func (p *Pool) audit() (slabs int64, err error) {
	c, d := &p.cache, &p.pinned
	c.ledger.LockAll()
	defer c.ledger.UnlockAll()
	d.mu.Lock()
	defer d.mu.Unlock()
	// While an Add is delayed its caller has a slab that is in no list.
	if p.closed.Load() || c.ledger.Delayed() > 0 {
		return 0, nil
	}
	// The list of all slabs is the reference for every count.
	var owned, bytes, registered int64
	for s := d.first; s != nil; s = s.next {
		if s.next != nil && s.next.prev != s {
			return 0, fmt.Errorf("the list of slabs is broken after one of %d bytes", s.size())
		}
		if s.registered {
			registered += s.size()
			continue
		}
		owned++
		bytes += s.size()
	}
	if n, b := c.total(gaugeAllocations).Current, c.total(gaugeAllocatedBytes).Current; owned != n || bytes != b || registered != d.registered.Current {
		return 0, fmt.Errorf("%d slabs of %d bytes and %d registered bytes are listed, %d of %d and %d are counted", owned, bytes,
			registered, n, b, d.registered.Current)
	}
	// The held bytes are at least those that are allocated, evicted and being freed. They also
	// include those that the driver refused to free.
	leaving := d.freeing
	for _, s := range c.evicted {
		leaving += s.size()
	}
	if d.allocating < 0 || d.freeing < 0 || d.held.Current < bytes+leaving {
		return 0, fmt.Errorf("%d bytes are allocated, %d being freed, %d being allocated, and %d held", bytes, leaving, d.allocating, d.held.Current)
	}
	if held := d.held.Current + d.allocating; d.limit > 0 && held > d.limit {
		return 0, fmt.Errorf("%d bytes are held and being allocated, MaxBytes is %d", held, d.limit)
	}
	// Registered slices count in no gauge of bytes.
	if active, cached := c.total(gaugeActiveBytes).Current, c.total(gaugeCachedBytes).Current; active+cached != bytes {
		return 0, fmt.Errorf("%d bytes are active, %d cached and %d allocated", active, cached, bytes)
	}
	if err := c.ledger.Audit(); err != nil {
		return 0, err
	}
	return owned, c.audit()
}

// audit compares the shards' lists with the gauges. All shards are locked.
func (c *cache) audit() error {
	var bytes int64
	var buffers [classes]int64
	for i, sh := range c.shards {
		if err := sh.audit(); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		for s := sh.oldest; s != nil; s = s.newer {
			bytes += s.size()
			buffers[s.class]++
		}
	}
	if n := c.total(gaugeCachedBytes).Current; bytes != n {
		return fmt.Errorf("%d bytes are idle, %d counted", bytes, n)
	}
	for class, n := range buffers {
		if counted := c.total(gaugeClass + class).Current; n != counted {
			return fmt.Errorf("%d buffers of class %d are idle, %d counted", n, class, counted)
		}
	}
	return nil
}

// audit compares the shard's lists with each other and with its counts.
func (sh *shard) audit() error {
	// The stacks by class and the list by age have the same slabs.
	var idle, byAge []*slab
	for class, top := range sh.idle {
		for s := top; s != nil; s = s.below {
			if s.class != class || s.below != nil && s.below.above != s || s.waiting > 0 || s.tainted || s.serial.Load()%2 > 0 {
				return fmt.Errorf("an idle slab of %d bytes in class %d: %d waiting, tainted %v", s.size(), class, s.waiting, s.tainted)
			}
			idle = append(idle, s)
		}
	}
	for s := sh.oldest; s != nil; s = s.newer {
		if s.newer != nil && (s.newer.older != s || s.newer.since <= s.since) {
			return fmt.Errorf("a slab that became idle at %d is followed by one of %d", s.since, s.newer.since)
		}
		byAge = append(byAge, s)
	}
	if n := len(byAge); n > 0 && sh.newest != byAge[n-1] || n == 0 && sh.newest != nil {
		return fmt.Errorf("the newest idle slab is not the last of %d", n)
	}
	if len(byAge) != len(idle) {
		return fmt.Errorf("%d slabs are idle, %d by age", len(idle), len(byAge))
	}
	// A slab is queued once for each copy that it waits for.
	orphans, slabs := 0, map[*slab]int{}
	for _, q := range sh.queues {
		if !slices.IsSortedFunc(q.entries, func(a, b waiting) int { return cmp.Compare(a.until.seq, b.until.seq) }) {
			return fmt.Errorf("the queue of stream %d is out of order", q.stream)
		}
		for _, w := range q.entries {
			if w.slab == nil {
				orphans++
			} else {
				slabs[w.slab]++
			}
		}
	}
	if orphans != sh.orphans || int64(len(slabs)) != sh.pending {
		return fmt.Errorf("%d orphans and %d slabs are queued, %d and %d counted", orphans, len(slabs), sh.orphans, sh.pending)
	}
	for s, n := range slabs {
		if n != s.waiting {
			return fmt.Errorf("a slab of %d bytes is queued %d times and waits for %d copies", s.size(), n, s.waiting)
		}
	}
	return nil
}
