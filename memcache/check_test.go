package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// check reports what is inconsistent in the cache's structures.
func (c *Cache) check() error {
	c.lockAll()
	defer c.unlockAll()
	var want Stats
	for _, sh := range c.table.Load().list {
		if err := sh.check(&want); err != nil {
			return err
		}
	}
	for row := range rows {
		for g := range gauges {
			var quotas int64
			for _, sh := range c.table.Load().list {
				if used := sh.at(row, g); used > sh.quota[row][g] || used < 0 {
					return fmt.Errorf("shard %d, row %d, gauge %d: %d used, the quota is %d", sh.id, row, g, used, sh.quota[row][g])
				}
				quotas += sh.quota[row][g]
			}
			if quotas != c.peaks[row][g] {
				return fmt.Errorf("row %d, gauge %d: the quotas are %d, the peak is %d", row, g, quotas, c.peaks[row][g])
			}
		}
	}
	stats := c.sum()
	var got, expected []int64
	stats.each(func(s *Stat) { got = append(got, s.Current) })
	want.each(func(s *Stat) { expected = append(expected, s.Current) })
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		return fmt.Errorf("current statistics %v, the blocks say %v", got, expected)
	}
	var wrong error
	stats.each(func(s *Stat) {
		if s.Allocated-s.Freed != s.Current || s.Peak < s.Current || s.Current < 0 {
			wrong = fmt.Errorf("statistic %+v", *s)
		}
	})
	return wrong
}

// check reports what is inconsistent in the shard, and adds what its blocks say to want.
func (s *shard) check(want *Stats) error {
	indexed := map[*lists]*[2]int{&s.lists: {}}
	segments := map[*lists]int{}
	for p, l := range s.private {
		if l.pool != p || l.segments == 0 {
			return fmt.Errorf("the lists of %s have %d segments and name %s", p, l.segments, l.pool)
		}
		indexed[l] = new([2]int)
	}
	for p, seg := range s.segments {
		at, prev := p, (*meta)(nil)
		if indexed[seg.lists] == nil || seg.free != &seg.lists.free[seg.first.kind] || seg.whole != (seg.lists.pool != nil && seg.lists.pool.options.NoSplit) {
			return fmt.Errorf("the segment at %d belongs to no pool of its shard", p)
		}
		segments[seg.lists]++
		if !seg.expandable {
			want.Segment.add(seg.first.kind, 1)
		}
		for m := seg.first; m != nil; prev, m = m, m.next {
			k := m.kind
			switch {
			case m.ptr != at || m.prev != prev || m.segment != seg || k != seg.first.kind || m.shard.Load() != s:
				return fmt.Errorf("block at %d of the segment at %d does not tile it", m.ptr-p, p)
			case m.size <= 0 || m.size%minBlock != 0 && !s.cache.config.NoCaching:
				return fmt.Errorf("block of %d bytes", m.size)
			case m.indexed && prev != nil && prev.indexed && m.unmapped == prev.unmapped:
				return fmt.Errorf("two free neighbours at %d and %d", prev.ptr, m.ptr)
			case m.indexed == (m.serial != 0 || m.pending):
				return fmt.Errorf("block at %d: free %v, serial %d, pending %v", m.ptr, m.indexed, m.serial, m.pending)
			}
			if !m.unmapped {
				want.ReservedBytes.add(k, m.size)
			}
			switch {
			case m.unmapped:
			case m.indexed:
				indexed[seg.lists][k]++
				if !m.whole() && !seg.expandable {
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
				if m.size >= s.cache.rules.maxSplit {
					want.OversizeAllocations.add(1)
				}
			}
			at += device.Ptr(m.size)
		}
		if at != p+device.Ptr(seg.bytes) {
			return fmt.Errorf("the blocks of the segment at %d end at %d", p, at)
		}
		if !seg.expandable && seg.bytes >= s.cache.rules.maxSplit {
			want.OversizeSegments.add(1)
		}
	}
	for l, n := range indexed {
		if segments[l] != l.segments {
			return fmt.Errorf("%s has %d segments, and counts %d", l.pool, segments[l], l.segments)
		}
		if err := l.check(n); err != nil {
			return err
		}
	}
	return nil
}

func (l *lists) check(indexed *[2]int) error {
	for k := range l.free {
		var last *meta
		n := 0
		var err error
		l.free[k].all(func(m *meta) {
			n++
			if last != nil && !(&tree{}).less(last, m) || !m.indexed || m.kind != poolKind(k) || m.segment.lists != l {
				err = fmt.Errorf("the index of the %s pool is out of order", poolKind(k))
			}
			last = m
		})
		if err != nil {
			return err
		}
		if n != indexed[k] || n != l.free[k].len {
			return fmt.Errorf("the %s pool has %d free blocks, its index %d (%d)", poolKind(k), indexed[k], n, l.free[k].len)
		}
	}
	return nil
}
