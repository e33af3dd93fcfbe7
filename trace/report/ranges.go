package report

import (
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
)

// memory is a range from the driver, from one moment to another.
type memory struct {
	addr     uint64
	size     int64
	from, to int32
	stream   uint64
	mapped   bool // part of an expandable segment
}

func (m *memory) end() uint64 { return m.addr + uint64(m.size) }

// ranges are the ranges that exist while the entries are applied in order.
type ranges struct {
	open sorted[memory] // by address; no two overlap
	past []memory
}

// first returns the first open range that ends after an address.
func (r *ranges) first(addr uint64) (memory, bool) {
	if m, ok := r.open.before(addr); ok && m.end() > addr {
		return m, true
	}
	return r.open.from(addr)
}

// take ends the known parts of a range, and keeps the parts beside it. It reports whether there
// were any.
func (r *ranges) take(addr uint64, size int64, at int32) (known bool) {
	end := addr + uint64(size)
	for {
		m, ok := r.first(addr)
		if !ok || m.addr >= end {
			return known
		}
		known = true
		lo, hi := max(m.addr, addr), min(m.end(), end)
		r.open.remove(m.addr)
		r.past = append(r.past, m.part(lo, hi, at))
		if m.addr < lo {
			r.open.set(m.addr, m.part(m.addr, lo, 0))
		}
		if m.end() > hi {
			r.open.set(hi, m.part(hi, m.end(), 0))
		}
	}
}

// part returns the range between two addresses, up to a moment.
func (m memory) part(lo, hi uint64, to int32) memory {
	m.addr, m.size, m.to = lo, int64(hi-lo), to
	return m
}

// addRanges finds the moments at which the driver's memory existed.
func (a *account) addRanges() {
	var r ranges
	n := a.moments()
	for i := range a.entries {
		e, at := &a.entries[i], int32(i)
		switch e.action {
		case recording.SegmentAlloc, recording.SegmentMap:
			r.take(e.addr, e.requested, at)
			r.open.set(e.addr, memory{addr: e.addr, size: e.requested, from: at, stream: e.stream, mapped: e.action == recording.SegmentMap})
		case recording.SegmentFree, recording.SegmentUnmap:
			if !r.take(e.addr, e.requested, at) {
				r.past = append(r.past, memory{addr: e.addr, size: e.requested, from: -1, to: at, stream: e.stream, mapped: e.action == recording.SegmentUnmap})
			}
		}
	}
	for _, seg := range a.final {
		if m, ok := r.first(seg.addr); !ok || m.addr >= seg.addr+uint64(seg.size) {
			r.open.set(seg.addr, memory{addr: seg.addr, size: seg.size, from: -1, stream: seg.stream, mapped: seg.mapped})
		}
	}
	for m := range r.open.all {
		m.to = n
		r.past = append(r.past, m)
	}
	a.ranges = slices.DeleteFunc(r.past, func(m memory) bool { return m.from == m.to })
}
