package placement

import (
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// The invariants of an arena. A check walks every segment, and compares its chunks with the
// indexes.

// Check returns an error if the arena is inconsistent. takenOut allows chunks that are taken out,
// unrounded allows any size.
func (a *Arena) Check(takenOut, unrounded bool) error {
	found := map[*lists]*census{&a.own: {}}
	for p, l := range a.private {
		if l.pool != p || l.segments == 0 {
			return fmt.Errorf("the lists of pool %v have %d segments, and name it: %v", p.ID, l.segments, l.pool == p)
		}
		found[l] = new(census)
	}
	for p, seg := range a.segments {
		n := found[seg.lists]
		if n == nil || p != seg.ptr || seg.free != &seg.lists.free[seg.kind] || seg.unmapped != &seg.lists.unmapped[seg.kind] {
			return fmt.Errorf("the segment at %d belongs to no pool of its arena", p)
		}
		n.segments++
		if err := seg.check(n, takenOut, unrounded); err != nil {
			return err
		}
	}
	// The walk has counted the chunks of each kind. An index with the same number of chunks, all in
	// order and of these lists, contains exactly those.
	for l, n := range found {
		if err := l.check(n); err != nil {
			return err
		}
	}
	return nil
}

// census counts the segments and chunks of lists.
type census struct {
	segments          int
	indexed, unmapped [2]int // chunks, by Kind
}

// check requires that the chunks tile the segment and refer to it, that sizes are multiples of the
// unit, that free neighbours have merged, and that each chunk is in one state. It counts the chunks
// that are not in use.
func (seg *Segment) check(n *census, takenOut, unrounded bool) error {
	at, prev := seg.ptr, (*Chunk)(nil)
	for m := seg.first; m != nil; prev, m = m, m.next {
		switch {
		case m.ptr != at || m.prev != prev || m.segment != seg || m.kind != seg.kind:
			return fmt.Errorf("block at %d of the segment at %d does not tile it", m.ptr-seg.ptr, seg.ptr)
		case m.size <= 0 || m.size%sizes.MinBlock != 0 && !unrounded:
			return fmt.Errorf("block of %d bytes", m.size)
		case m.indexed() && prev != nil && prev.indexed() && m.unmapped == prev.unmapped:
			return fmt.Errorf("two free neighbours at %d and %d", prev.ptr, m.ptr)
		case m.used && (m.indexed() || m.unmapped), !m.used && !m.indexed() && !takenOut:
			return fmt.Errorf("block at %d: free %v, in use %v, unmapped %v", m.ptr, m.indexed(), m.used, m.unmapped)
		case m.unmapped:
			n.unmapped[m.kind]++
		case m.indexed():
			n.indexed[m.kind]++
		}
		at += device.Ptr(m.size)
	}
	if at != seg.ptr+device.Ptr(seg.bytes) {
		return fmt.Errorf("the blocks of the segment at %d end at %d", seg.ptr, at)
	}
	return nil
}

// check compares the lists with the census of the segments.
func (l *lists) check(want *census) error {
	if want.segments != l.segments {
		return fmt.Errorf("a pool has %d segments, and counts %d", want.segments, l.segments)
	}
	for k := range l.free {
		if err := l.free[k].check(l, Kind(k), want.indexed[k]); err != nil {
			return err
		}
		n := 0
		walk(l.unmapped[k].root, func(*Chunk) { n++ })
		if n != want.unmapped[k] {
			return fmt.Errorf("the %s pool has %d unmapped ranges, its index %d", Kind(k), want.unmapped[k], n)
		}
	}
	return nil
}

// check requires that the index contains want chunks of the pool, in order.
func (x *index) check(l *lists, k Kind, want int) error {
	var last *Chunk
	var err error
	n := 0
	x.each(func(m *Chunk) {
		n++
		if last != nil && !less(last, m) || !m.indexed() || m.kind != k || m.unmapped || m.segment.lists != l {
			err = fmt.Errorf("the index of the %s pool is out of order", k)
		}
		last = m
	})
	if err == nil && (n != want || n != x.len) {
		err = fmt.Errorf("the %s pool has %d free blocks, its index %d (%d)", k, want, n, x.len)
	}
	return err
}
