package memcache

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The invariants between operations. Tests check them, and builds with the tag invariants check
// them after operations. A check walks every segment, and compares its chunks with the indexes, the
// statistics and the quotas.

// check returns an error if the cache's structures are inconsistent, and the number of blocks that
// it visited. It may run at any time: only the holder of the growth lock uses the blocks that it
// has taken out of the index.
func (l *ledger) check() (blocks int64, err error) {
	l.shards.lockAll()
	defer l.shards.unlockAll()
	if l.shards.closed {
		return 0, nil
	}
	var want Stats
	for _, sh := range l.shards.list() {
		n, err := sh.check(&want)
		if err != nil {
			return blocks, err
		}
		blocks += n
	}
	return blocks, errors.Join(l.checkQuotas(), l.checkStats(&want), l.checkPeaks(), l.checkPools())
}

// checkQuotas checks the basis of exact peaks (usage.go): no shard uses more than its quotas, and
// the quotas add up to the peaks. All shards are locked.
func (l *ledger) checkQuotas() error {
	for row := range rows {
		for g := range gauges {
			var quotas int64
			for _, sh := range l.shards.list() {
				if used := sh.inUse(row, g); used > sh.quota[row][g] || used < 0 {
					return fmt.Errorf("shard %d, row %d, gauge %d: %d used, the quota is %d", sh.id, row, g, used, sh.quota[row][g])
				}
				quotas += sh.quota[row][g]
			}
			if quotas != l.peaks[row][g] {
				return fmt.Errorf("row %d, gauge %d: the quotas are %d, the peak is %d", row, g, quotas, l.peaks[row][g])
			}
		}
	}
	// The same for the two gauges of windows.
	for i, scope := range l.openScopes {
		var quotas scopeQuota
		for _, sh := range l.shards.list() {
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

// checkPeaks checks that the blocks recorded at each peak add up to it. All shards are locked.
func (l *ledger) checkPeaks() error {
	sum := func(log func(*shard) *peakLog) (n int64) {
		for _, note := range l.notesOfPeak(log) {
			n += note.size
		}
		return n
	}
	if n, peak := sum(func(s *shard) *peakLog { return &s.peak }), l.peaks[allPools][gaugeAllocatedBytes]; n != peak {
		return fmt.Errorf("the holders of the peak of %d bytes add up to %d", peak, n)
	}
	for i, scope := range l.openScopes {
		if n, peak := sum(func(s *shard) *peakLog { return &s.scopes[i].peak }), scope.window.Allocated.Peak; n != peak {
			return fmt.Errorf("the holders of the peak of %d bytes of scope %q add up to %d", peak, scope.name, n)
		}
	}
	return nil
}

// checkStats compares the current statistics with the sums over the blocks. Peaks and totals can't
// be derived from blocks, so only their bounds are checked. All shards are locked.
func (l *ledger) checkStats(want *Stats) error {
	stats := l.sumStats()
	var got, expected []int64
	says := want.quantities()
	for i, s := range stats.quantities() {
		got, expected = append(got, s.Current), append(expected, says[i].Current)
	}
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		return fmt.Errorf("the current statistics are %v, those of the blocks %v", got, expected)
	}
	for _, s := range stats.quantities() {
		if s.Peak < s.Current || s.Current < 0 || s.Allocated < 0 || s.Freed < 0 {
			return fmt.Errorf("statistic %+v", *s)
		}
	}
	return nil
}

// check returns an error if the shard is inconsistent, and adds its blocks to want. The statistics
// are compared for all shards together, because some of them are counted once for the cache.
func (s *shard) check(want *Stats) (blocks int64, err error) {
	if err := s.arena.Check(len(s.cache.grower.held) > 0, s.shards.config().NoCaching); err != nil {
		return 0, fmt.Errorf("shard %d: %w", s.id, err)
	}
	for seg := range s.arena.Segments() {
		n, err := s.checkSegment(seg, want)
		if blocks += n; err != nil {
			return blocks, err
		}
	}
	return blocks, nil
}

// checkSegment is check for one segment.
func (s *shard) checkSegment(seg *placement.Segment, want *Stats) (blocks int64, err error) {
	k := seg.Kind()
	if !seg.Expandable() {
		want.Segment.add(k, 1)
		if seg.Bytes() >= s.shards.rules().MaxSplit {
			want.OversizeSegments.add(1)
		}
	}
	for m := seg.First(); m != nil; m = m.Next() {
		blocks++
		h := handoutOf(m)
		if m.Used() != (h != nil) || h != nil && (h.chunk != m || h.shard != s || (h.serial != 0) == h.pending) {
			return blocks, fmt.Errorf("shard %d: block at %d: in use %v, handed out as %+v", s.id, m.Ptr(), m.Used(), h)
		}
		if !m.Unmapped() {
			want.ReservedBytes.add(k, m.Size())
		}
		switch {
		case m.Used():
			want.Active.add(k, 1)
			want.ActiveBytes.add(k, m.Size())
			want.RequestedBytes.add(k, m.Requested)
		case m.Free() && !m.Whole() && !seg.Expandable():
			want.InactiveSplit.add(k, 1)
			want.InactiveSplitBytes.add(k, m.Size())
		}
		if h != nil && h.serial != 0 {
			want.Allocation.add(k, 1)
			want.AllocatedBytes.add(k, m.Size())
			if m.Size() >= s.shards.rules().MaxSplit {
				want.OversizeAllocations.add(1)
			}
		}
	}
	return blocks, nil
}

// checkPools compares the current statistics of private pools with the sums over their blocks. All
// shards are locked.
func (l *ledger) checkPools() error {
	pools := make(map[*poolCounts]*Stats)
	for _, s := range l.shards.list() {
		for seg := range s.arena.Segments() {
			c := countsOf(seg.Pool())
			if c == nil {
				continue
			}
			if pools[c] == nil {
				pools[c] = new(Stats)
			}
			if _, err := s.checkSegment(seg, pools[c]); err != nil {
				return err
			}
		}
	}
	for c, want := range pools {
		got := c.read()
		says := want.quantities()
		for i, q := range got.quantities() {
			// The last quantity, OversizeSegments, is not counted for pools.
			if i < len(says)-1 && (q.Current != says[i].Current || q.Peak < q.Current || q.Allocated-q.Freed != q.Current) {
				return fmt.Errorf("quantity %d of a pool is %+v, that of its blocks %d", i, *q, says[i].Current)
			}
		}
	}
	return nil
}
