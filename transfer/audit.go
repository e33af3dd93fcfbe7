package transfer

import (
	"cmp"
	"fmt"
	"slices"
)

// Builds with the tag invariants compare everything that is counted with everything that is there,
// after every operation: the lists of each shard, the quotas and allowances, the bytes of each
// kind. An audit locks all shards and looks at every slab, so that large pools are audited after
// some operations only: the cost for each operation stays the same. What tests with random programs
// find is found where it began, and not where it shows.

// slabsPerOperation is how many slabs the audits of builds with the tag invariants look at per
// operation, on average: a pool with fewer is audited after every one.
const slabsPerOperation = 64

// verify panics if the pool's structures are inconsistent. It is called after every operation.
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

// audit compares what the pool counts with what its shards and its list of slabs have, and returns
// how many slabs it looked at.
func (p *Pool) audit() (slabs int64, err error) {
	p.lockAll()
	defer p.unlockAll()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.Load() {
		return 0, nil
	}
	// The list of all slabs is what there is; every count must agree with it.
	var owned, bytes, registered int64
	for s := p.first; s != nil; s = s.next {
		if s.next != nil && s.next.prev != s {
			return 0, fmt.Errorf("the list of slabs is broken behind one of %d bytes", s.size())
		}
		if s.registered {
			registered += s.size()
			continue
		}
		owned++
		bytes += s.size()
	}
	if owned != p.allocations.Current || bytes != p.allocatedBytes.Current || registered != p.registered.Current {
		return 0, fmt.Errorf("%d slabs of %d bytes and %d registered bytes are listed, %d of %d and %d are counted", owned, bytes,
			registered, p.allocations.Current, p.allocatedBytes.Current, p.registered.Current)
	}
	// What is held is at least what is allocated, evicted and being freed; more of it was refused by the driver.
	leaving := p.freeing
	for _, s := range p.evicted {
		leaving += s.size()
	}
	if p.allocating < 0 || p.freeing < 0 || p.held.Current < bytes+leaving {
		return 0, fmt.Errorf("%d bytes are allocated, %d being freed, %d being allocated, and %d held", bytes, leaving, p.allocating, p.held.Current)
	}
	if held := p.held.Current + p.allocating; p.limit > 0 && held > p.limit {
		return 0, fmt.Errorf("%d bytes are held and being allocated, MaxBytes is %d", held, p.limit)
	}
	// Registered slices are in no gauge of bytes.
	if active, cached := p.total(gaugeActiveBytes).Current, p.total(gaugeCachedBytes).Current; active+cached != bytes {
		return 0, fmt.Errorf("%d bytes are active, %d cached and %d allocated", active, cached, bytes)
	}
	if err := p.auditQuotas(); err != nil {
		return 0, err
	}
	return owned, p.auditBudget()
}

// auditQuotas requires what exact peaks rest on. All shards are locked.
func (p *Pool) auditQuotas() error {
	for g := range gauges {
		var quotas int64
		for i, sh := range p.shards {
			if sh.used[g] > sh.quota[g] {
				return fmt.Errorf("shard %d, gauge %d: %d used, the quota is %d", i, g, sh.used[g], sh.quota[g])
			}
			quotas += sh.quota[g]
		}
		if t := p.total(g); quotas != p.peaks[g] || t.Current < 0 {
			return fmt.Errorf("gauge %d: the quotas are %d, the peak is %d, %d are used", g, quotas, p.peaks[g], t.Current)
		}
	}
	if p.peaks[gaugeCachedBytes] > p.budget {
		return fmt.Errorf("the peak of cached bytes is %d, the budget %d", p.peaks[gaugeCachedBytes], p.budget)
	}
	return nil
}

// auditBudget requires that nothing of the budget and of the places for buffers gets lost. All
// shards are locked.
func (p *Pool) auditBudget() error {
	bytes, buffers := p.byteAllowance, p.bufferAllowance
	for i, sh := range p.shards {
		if err := sh.audit(); err != nil {
			return fmt.Errorf("shard %d: %w", i, err)
		}
		bytes += sh.byteAllowance + sh.used[gaugeCachedBytes]
		for class := range buffers {
			buffers[class] += sh.bufferAllowance[class]
			for s := sh.idle[class]; s != nil; s = s.below {
				buffers[class]++
			}
		}
	}
	if bytes != p.budget {
		return fmt.Errorf("the shards' parts of the budget of %d bytes are %d", p.budget, bytes)
	}
	for class, n := range buffers {
		if n != p.maxPerClass {
			return fmt.Errorf("class %d has places for %d buffers of %d", class, n, p.maxPerClass)
		}
	}
	return nil
}

// audit compares the shard's lists.
func (sh *shard) audit() error {
	// The stacks by class and the list by age have the same slabs.
	var idle, byAge []*slab
	var bytes int64
	for class, top := range sh.idle {
		for s := top; s != nil; s = s.below {
			if s.class != class || s.below != nil && s.below.above != s || s.waiting > 0 || s.tainted || s.serial.Load()%2 > 0 {
				return fmt.Errorf("an idle slab of %d bytes in class %d: %d waiting, tainted %v", s.size(), class, s.waiting, s.tainted)
			}
			idle = append(idle, s)
			bytes += s.size()
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
	if bytes != sh.used[gaugeCachedBytes] || len(byAge) != len(idle) || sh.byteAllowance < 0 {
		return fmt.Errorf("%d slabs of %d bytes are idle, %d by age, %d bytes counted, %d left", len(idle), bytes, len(byAge),
			sh.used[gaugeCachedBytes], sh.byteAllowance)
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
