package replay

import (
	"cmp"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// unknownMemory is the memory in bytes of a device of unknown size, unless something bounds it.
const unknownMemory = 1 << 40

// totalMemory returns the device's memory in bytes. If it is not recorded, it only decides how many
// addresses an expandable segment reserves, 9/8 of it. So the result fits the addresses before the
// next segment.
func totalMemory(p *recording.Program) int64 {
	if p.TotalMemory > 0 {
		return p.TotalMemory
	}
	taken := reservations{budget: p.Budget}
	room := device.Ptr(unknownMemory / 8 * 9)
	if p.Start != nil {
		bases := rangeBases(p)
		for i := range p.Start.Segments {
			s := &p.Start.Segments[i]
			if !s.Mapped {
				room = min(room, taken.add(reservation{base: s.Address}))
				continue
			}
			key := keyOfStart(s)
			base := *s
			if _, ok := taken.bases[key]; !ok {
				base.Address = bases[key]
			}
			room = min(room, taken.mapped(recording.Entry{Addr: base.Address, Size: s.Size}, key))
		}
	}
	reserved := p.Start.Reserved()
	most := reserved
	for i := range p.Steps {
		s := &p.Steps[i]
		if p.Budget.Work(1) != nil {
			break // the next charge reports it
		}
		for _, e := range p.Inside(s) {
			if e.Action.Releases() {
				reserved -= e.Size
			} else if e.Action.Driver() {
				reserved += e.Size
			}
			most = max(most, reserved)
			switch e.Action {
			case recording.SegmentMap:
				room = min(room, taken.mapped(e, keyOf(p, s, e.Stream)))
			case recording.SegmentAlloc:
				room = min(room, taken.add(reservation{base: e.Addr}))
			case recording.SegmentUnmap:
				taken.unmapped(e)
			case recording.SegmentFree:
				taken.remove(e.Addr)
			}
		}
	}
	whole := int64(room) / sizes.LargeSegment * sizes.LargeSegment // a reservation is rounded up
	return max(whole/9*8, most, granule)
}

// maxLookAhead bounds the steps that are searched for a later mapping.
const maxLookAhead = 100_000

// laterMapping returns the address of the next mapping in the expandable segment of the current
// request, or 0. A segment whose first mapping fails keeps its addresses.
func (m *machine) laterMapping() device.Ptr {
	r := m.requested
	if r == nil {
		return 0
	}
	key := keyOf(m.p, r, m.p.Entries[r.Entry].Stream)
	i, _ := slices.BinarySearchFunc(m.p.Steps, r.Entry, func(s recording.Step, entry int32) int { return cmp.Compare(s.Entry, entry) })
	for k := i; k < min(len(m.p.Steps), i+maxLookAhead); k++ {
		s := &m.p.Steps[k]
		if m.work(1); m.err != nil {
			return 0
		}
		for _, e := range m.p.Inside(s) {
			if e.Action == recording.SegmentMap && keyOf(m.p, s, e.Stream) == key {
				return e.Addr
			}
		}
	}
	return 0
}

// keyOf returns the key of memory that a step mapped.
func keyOf(p *recording.Program, s *recording.Step, stream uint64) rangeKey {
	kind := uint64(1)
	if p.Entries[s.Entry].Size > sizes.SmallLimit {
		kind = 2
	}
	return rangeKey{stream, kind, s.Pool}
}

// rangeKey identifies an expandable segment: stream, kind of blocks, pool.
type rangeKey struct{ stream, kind, pool uint64 }

// reservation is a range of addresses: a segment, or the beginning of an expandable one.
type reservation struct {
	base  device.Ptr
	key   rangeKey // zero for a segment
	bytes int64    // mapped bytes
}

// reservations is the list of current reservations, by address. An expandable segment without
// mapped memory has none.
type reservations struct {
	budget *budget.Budget
	list   []reservation
	bases  map[rangeKey]device.Ptr
}

// at returns the index of an address among the reservations.
func (t *reservations) at(p device.Ptr) (i int, found bool) {
	return slices.BinarySearchFunc(t.list, p, func(r reservation, p device.Ptr) int { return cmp.Compare(r.base, p) })
}

// add adds a reservation, and returns the most addresses that expandable segments can have beside
// their neighbours.
func (t *reservations) add(r reservation) device.Ptr {
	room := device.Ptr(unknownMemory / 8 * 9)
	i, found := t.at(r.base)
	if found {
		// a recording that contradicts itself
		return room
	}
	if i > 0 && t.list[i-1].key != (rangeKey{}) {
		room = r.base - t.list[i-1].base
	}
	if i < len(t.list) && r.key != (rangeKey{}) {
		room = min(room, t.list[i].base-r.base)
	}
	t.moved(i)
	t.list = slices.Insert(t.list, i, r)
	return room
}

// moved charges for moving the reservations after i. The caller finds an excess later.
func (t *reservations) moved(i int) {
	const bytes = 48 // of a reservation
	_ = t.budget.Move(bytes * int64(len(t.list)-i))
}

func (t *reservations) remove(p device.Ptr) {
	if i, found := t.at(p); found {
		t.moved(i)
		t.list = slices.Delete(t.list, i, i+1)
	}
}

// mapped handles a mapping, which may be the first of an expandable segment, and returns add's
// result.
func (t *reservations) mapped(e recording.Entry, key rangeKey) device.Ptr {
	if base, ok := t.bases[key]; ok {
		if i, found := t.at(base); found {
			t.list[i].bytes += e.Size
			return unknownMemory / 8 * 9
		}
	}
	if t.bases == nil {
		t.bases = make(map[rangeKey]device.Ptr)
	}
	t.bases[key] = e.Addr
	return t.add(reservation{base: e.Addr, key: key, bytes: e.Size})
}

// unmapped handles an unmapping.
func (t *reservations) unmapped(e recording.Entry) {
	i, found := t.at(e.Addr)
	if !found {
		i--
	}
	if i < 0 || t.list[i].key == (rangeKey{}) {
		return
	}
	if t.list[i].bytes -= e.Size; t.list[i].bytes <= 0 {
		delete(t.bases, t.list[i].key)
		t.moved(i)
		t.list = slices.Delete(t.list, i, i+1)
	}
}
