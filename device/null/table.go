package null

import (
	"slices"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// kind is the origin of a range of addresses.
type kind uint8

const (
	allocated kind = iota
	mapped
	pinned
	registered
)

// span is a live range of addresses.
type span struct {
	ptr   device.Ptr
	bytes int64
	kind  kind
	home  device.Ptr // of a mapping: its reservation
	uses  int        // number of queued operations that name it
	dying bool       // being freed: no new operation may name it
	owner *Device    // of pinned memory
	data  []byte     // keeps host memory alive
}

func (s *span) end() device.Ptr { return s.ptr + device.Ptr(s.bytes) }

// table holds the live ranges, which don't overlap, and the reservations, in which mappings lie.
// Both are in address order.
type table struct {
	spans        []*span
	reservations []*span
}

// find returns the index of the first range in list that ends after p.
func find(list []*span, p device.Ptr) int {
	i, _ := slices.BinarySearchFunc(list, p, func(s *span, p device.Ptr) int {
		if s.end() <= p {
			return -1
		}
		return 1
	})
	return i
}

// record adds s to the ledger of open handles.
func (d *Device) record(s *span) {
	kinds := [...]opened.Kind{allocated: opened.Memory, mapped: opened.Mapping, pinned: opened.Pinned,
		registered: opened.Registered}
	d.opened.Add(kinds[s.kind], unsafe.Pointer(s))
}

// at returns the range in list that begins at p, or nil.
func at(list []*span, p device.Ptr) *span {
	if i := find(list, p); i < len(list) && list[i].ptr == p {
		return list[i]
	}
	return nil
}

// vacant reports whether [p, p+bytes) overlaps no range in list.
func vacant(list []*span, p device.Ptr, bytes int64) bool {
	i := find(list, p)
	return p+device.Ptr(bytes) > p && (i == len(list) || list[i].ptr >= p+device.Ptr(bytes))
}

func insert(list []*span, s *span) []*span { return slices.Insert(list, find(list, s.ptr), s) }

// remove removes s from list. After the device's Close the list no longer contains it.
func remove(list []*span, s *span) []*span {
	if i := find(list, s.ptr); i < len(list) && list[i] == s {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// left adds all live ranges and reservations to l.
func (t *table) left(l *backend.Leftover) {
	for _, s := range t.spans {
		kinds := [...]*backend.Held{allocated: &l.Allocations, mapped: &l.Mappings, pinned: &l.Pinned, registered: &l.Registered}
		kinds[s.kind].Add(s.bytes)
	}
	for _, r := range t.reservations {
		l.Reservations.Add(r.bytes)
	}
}
