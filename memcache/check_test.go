package memcache

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// check reports what is inconsistent in the cache's structures.
func (c *Cache) check() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var want Stats
	indexed := [2]int{}
	for p, s := range c.segments {
		at, prev := p, (*meta)(nil)
		want.Segment.add(s.first.kind, 1)
		want.ReservedBytes.add(s.first.kind, s.bytes)
		for m := s.first; m != nil; prev, m = m, m.next {
			k := m.kind
			switch {
			case m.ptr != at || m.prev != prev || m.segment != s || k != s.first.kind || m.stream != s.first.stream:
				return fmt.Errorf("block at %d of the segment at %d does not tile it", m.ptr-p, p)
			case m.size <= 0 || m.size%minBlock != 0:
				return fmt.Errorf("block of %d bytes", m.size)
			case m.indexed && prev != nil && prev.indexed:
				return fmt.Errorf("two free neighbours at %d and %d", prev.ptr, m.ptr)
			case m.indexed == (m.serial != 0 || m.events > 0):
				return fmt.Errorf("block at %d: free %v, serial %d, events %d", m.ptr, m.indexed, m.serial, m.events)
			}
			if m.indexed {
				indexed[k]++
				if !m.whole() {
					want.InactiveSplit.add(k, 1)
					want.InactiveSplitBytes.add(k, m.size)
				}
			} else {
				want.Active.add(k, 1)
				want.ActiveBytes.add(k, m.size)
				want.RequestedBytes.add(k, m.requested)
			}
			if m.serial != 0 {
				want.Allocation.add(k, 1)
				want.AllocatedBytes.add(k, m.size)
			}
			at += device.Ptr(m.size)
		}
		if at != p+device.Ptr(s.bytes) {
			return fmt.Errorf("the blocks of the segment at %d end at %d", p, at)
		}
	}
	for k := range c.free {
		var last *meta
		n := 0
		var err error
		c.free[k].all(func(m *meta) {
			n++
			if last != nil && !c.free[k].less(last, m) || !m.indexed || m.kind != poolKind(k) {
				err = fmt.Errorf("the index of the %s pool is out of order", poolKind(k))
			}
			last = m
		})
		if err != nil {
			return err
		}
		if n != indexed[k] || n != c.free[k].len {
			return fmt.Errorf("the %s pool has %d free blocks, its index %d (%d)", poolKind(k), indexed[k], n, c.free[k].len)
		}
	}
	var got, expected []int64
	c.stats.each(func(s *Stat) { got = append(got, s.Current) })
	want.each(func(s *Stat) { expected = append(expected, s.Current) })
	if fmt.Sprint(got) != fmt.Sprint(expected) {
		return fmt.Errorf("current statistics %v, the blocks say %v", got, expected)
	}
	var wrong error
	c.stats.each(func(s *Stat) {
		if s.Allocated-s.Freed != s.Current || s.Peak < s.Current || s.Current < 0 {
			wrong = fmt.Errorf("statistic %+v", *s)
		}
	})
	return wrong
}
