package memcache

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// What must hold between operations, as code: tests call it, and builds with the tag invariants after operations. It walks
// every segment, and compares what the chunks say with the indexes, the statistics and the quotas.

// check reports what is inconsistent in the cache's structures.
func (c *Cache) check() error {
	_, err := c.checkBlocks()
	return err
}

// checkBlocks is check, and counts the blocks that it looked at. It may run at any time: blocks that the
// holder of the growth lock works on, outside of the index, belong to nobody else.
func (c *Cache) checkBlocks() (blocks int64, err error) {
	c.lockAll()
	defer c.unlockAll()
	if c.closed {
		return 0, nil
	}
	blocks, err = c.checkLocked()
	return blocks, err
}

// checkLocked is checkBlocks with all shards locked.
func (c *Cache) checkLocked() (blocks int64, err error) {
	var want Stats
	for _, sh := range c.table.Load().list {
		n, err := sh.check(&want)
		if err != nil {
			return blocks, err
		}
		blocks += n
	}
	return blocks, errors.Join(c.checkQuotas(), c.checkStats(&want), c.checkPeaks())
}

// checkQuotas requires what exact peaks rest on (usage): no shard uses more than its quotas, and they add up to the peaks.
// All shards are locked.
func (c *Cache) checkQuotas() error {
	for row := range rows {
		for g := range gauges {
			var quotas int64
			for _, sh := range c.table.Load().list {
				if used := sh.inUse(row, g); used > sh.quota[row][g] || used < 0 {
					return fmt.Errorf("shard %d, row %d, gauge %d: %d used, the quota is %d", sh.id, row, g, used, sh.quota[row][g])
				}
				quotas += sh.quota[row][g]
			}
			if quotas != c.peaks[row][g] {
				return fmt.Errorf("row %d, gauge %d: the quotas are %d, the peak is %d", row, g, quotas, c.peaks[row][g])
			}
		}
	}
	// The same for the two gauges that windows have.
	for i, scope := range c.openScopes {
		var quotas scopeQuota
		for _, sh := range c.table.Load().list {
			q := sh.scopes[i]
			if sh.inUse(allPools, gaugeAllocatedBytes) > q.allocated || sh.inUse(allPools, gaugeRequestedBytes) > q.requested {
				return fmt.Errorf("shard %d is beyond its quota in scope %q", sh.id, scope.name)
			}
			quotas.allocated += q.allocated
			quotas.requested += q.requested
		}
		if quotas.allocated != scope.window.Allocated.Peak || quotas.requested != scope.window.Requested.Peak {
			return fmt.Errorf("the quotas in scope %q are %+v, its peaks %+v", scope.name, quotas, scope.window)
		}
	}
	return nil
}

// checkPeaks requires those who held the peaks to add up to them. All shards are locked.
func (c *Cache) checkPeaks() error {
	sum := func(log func(*shard) *peakLog) (n int64) {
		for _, s := range c.table.Load().list {
			l := log(s)
			for i := range l.freed {
				n += l.freed[i].size
			}
			s.eachLive(func(m *chunk) {
				if m.born <= l.before {
					n += m.size
				}
			})
		}
		return n
	}
	if n, peak := sum(func(s *shard) *peakLog { return &s.peak }), c.peaks[allPools][gaugeAllocatedBytes]; n != peak {
		return fmt.Errorf("who held the peak of %d bytes adds up to %d", peak, n)
	}
	for i, scope := range c.openScopes {
		if n, peak := sum(func(s *shard) *peakLog { return &s.scopes[i].peak }), scope.window.Allocated.Peak; n != peak {
			return fmt.Errorf("who held the peak of %d bytes of scope %q adds up to %d", peak, scope.name, n)
		}
	}
	return nil
}

// checkStats compares what is in use by the statistics with what the blocks say; peaks and sums can't be had from blocks, so
// that of them only bounds are checked. All shards are locked.
func (c *Cache) checkStats(want *Stats) error {
	stats := c.sumStats()
	var got, expected []int64
	says := want.quantities()
	for i, s := range stats.quantities() {
		got, expected = append(got, s.Current), append(expected, says[i].Current)
	}
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		return fmt.Errorf("current statistics %v, the blocks say %v", got, expected)
	}
	for _, s := range stats.quantities() {
		if s.Peak < s.Current || s.Current < 0 || s.Allocated < 0 || s.Freed < 0 {
			return fmt.Errorf("statistic %+v", *s)
		}
	}
	return nil
}

// check reports what is inconsistent in the shard, and adds what its blocks say to want. The
// statistics are compared for all shards together, since some of them are counted once for the cache.
func (s *shard) check(want *Stats) (blocks int64, err error) {
	found := map[*freeLists]*census{&s.freeLists: {}}
	for p, l := range s.private {
		if l.pool != p || l.segments == 0 {
			return 0, fmt.Errorf("the lists of %s have %d segments and name %s", p, l.segments, l.pool)
		}
		found[l] = new(census)
	}
	growing := len(s.cache.growth) > 0
	for p, seg := range s.segments {
		at, prev := p, (*chunk)(nil)
		n := found[seg.freeLists]
		if n == nil || seg.free != &seg.freeLists.free[seg.first.kind] || seg.noSplit != (seg.freeLists.pool != nil && seg.freeLists.pool.options.NoSplit) {
			return blocks, fmt.Errorf("the segment at %d belongs to no pool of its shard", p)
		}
		n.segments++
		if !seg.expandable {
			want.Segment.add(seg.first.kind, 1)
		}
		for m := seg.first; m != nil; prev, m = m, m.next {
			k := m.kind
			blocks++
			// held: the holder of the growth lock has taken it out of the index.
			held := growing && !m.indexed && m.serial == 0 && !m.pending
			// The chunks tile the segment and name it and the shard; sizes are whole; free neighbours have merged; and
			// each chunk is in one state.
			switch {
			case m.ptr != at || m.prev != prev || m.segment != seg || k != seg.first.kind || m.shard.Load() != s:
				return blocks, fmt.Errorf("block at %d of the segment at %d does not tile it", m.ptr-p, p)
			case m.size <= 0 || m.size%minBlock != 0 && !s.cache.config.NoCaching:
				return blocks, fmt.Errorf("block of %d bytes", m.size)
			case m.indexed && prev != nil && prev.indexed && m.unmapped == prev.unmapped:
				return blocks, fmt.Errorf("two free neighbours at %d and %d", prev.ptr, m.ptr)
			case !held && m.indexed == (m.serial != 0 || m.pending) || m.serial != 0 && m.pending:
				return blocks, fmt.Errorf("block at %d: free %v, serial %d, pending %v", m.ptr, m.indexed, m.serial, m.pending)
			}
			// What the statistics must say of it.
			if !m.unmapped {
				want.ReservedBytes.add(k, m.size)
			}
			switch {
			case m.unmapped:
				n.unmapped[k]++
			case held:
			case m.indexed:
				n.indexed[k]++
				if !m.isSegment() && !seg.expandable {
					want.InactiveSplit.add(k, 1)
					want.InactiveSplitBytes.add(k, m.size)
				}
			default:
				want.Active.add(k, 1)
				want.ActiveBytes.add(k, m.size)
				want.RequestedBytes.add(k, m.requested)
			}
			if m.serial != 0 {
				want.Allocation.add(k, 1)
				want.AllocatedBytes.add(k, m.size)
				if m.size >= s.cache.sizing.maxSplit {
					want.OversizeAllocations.add(1)
				}
			}
			at += device.Ptr(m.size)
		}
		if at != p+device.Ptr(seg.bytes) {
			return blocks, fmt.Errorf("the blocks of the segment at %d end at %d", p, at)
		}
		if !seg.expandable && seg.bytes >= s.cache.sizing.maxSplit {
			want.OversizeSegments.add(1)
		}
	}
	// The segments said how many chunks of each kind there are: with the same number, all in order and of these lists, an
	// index holds exactly those.
	for l, n := range found {
		if err := l.check(n); err != nil {
			return blocks, err
		}
	}
	return blocks, nil
}

// census is what the segments say of a shard's free lists.
type census struct {
	segments          int
	indexed, unmapped [2]int // blocks, by poolKind
}

// check compares the free lists with what the segments say.
func (l *freeLists) check(want *census) error {
	if want.segments != l.segments {
		return fmt.Errorf("%s has %d segments, and counts %d", l.pool, want.segments, l.segments)
	}
	for k := range l.free {
		if err := l.free[k].check(l, poolKind(k), want.indexed[k]); err != nil {
			return err
		}
		n := 0
		walk(l.unmapped[k].root, func(*chunk) { n++ })
		if n != want.unmapped[k] {
			return fmt.Errorf("the %s pool has %d unmapped ranges, its index %d", poolKind(k), want.unmapped[k], n)
		}
	}
	return nil
}

// check requires the index to hold want chunks of the pool, in order.
func (x *index) check(l *freeLists, k poolKind, want int) error {
	var last *chunk
	var err error
	n := 0
	x.each(func(m *chunk) {
		n++
		if last != nil && !(&tree{}).less(last, m) || !m.indexed || m.kind != k || m.unmapped || m.segment.freeLists != l {
			err = fmt.Errorf("the index of the %s pool is out of order", k)
		}
		last = m
	})
	if err == nil && (n != want || n != x.len) {
		err = fmt.Errorf("the %s pool has %d free blocks, its index %d (%d)", k, want, n, x.len)
	}
	return err
}
