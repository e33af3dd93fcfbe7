package null

import (
	"slices"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// kind is what a range of addresses is.
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
	home  device.Ptr // of a mapping: the reservation
	uses  int        // queued operations that name it
	dying bool       // being freed: nothing may name it any more
	owner *Device    // of pinned memory
	data  []byte     // of host memory: keeps it alive
}

func (s *span) end() device.Ptr { return s.ptr + device.Ptr(s.bytes) }

// table is the live ranges, which don't overlap, in address order; and the reservations of addresses, in which
// mappings lie.
type table struct {
	spans        []*span
	reservations []*span
}

// find is the first range in list that ends after p.
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

// at is the range in list that begins at p, or nil.
func at(list []*span, p device.Ptr) *span {
	if i := find(list, p); i < len(list) && list[i].ptr == p {
		return list[i]
	}
	return nil
}

// vacant reports whether [p, p+bytes) touches nothing in list.
func vacant(list []*span, p device.Ptr, bytes int64) bool {
	i := find(list, p)
	return p+device.Ptr(bytes) > p && (i == len(list) || list[i].ptr >= p+device.Ptr(bytes))
}

func insert(list []*span, s *span) []*span { return slices.Insert(list, find(list, s.ptr), s) }

// remove takes s out of list, unless the device's Close has forgotten it.
func remove(list []*span, s *span) []*span {
	if i := find(list, s.ptr); i < len(list) && list[i] == s {
		return slices.Delete(list, i, i+1)
	}
	return list
}

// left adds what is live to l.
func (t *table) left(l *backend.Leftover) {
	for _, s := range t.spans {
		kinds := [...]*backend.Held{allocated: &l.Allocations, mapped: &l.Mappings, pinned: &l.Pinned, registered: &l.Registered}
		kinds[s.kind].Add(s.bytes)
	}
	for _, r := range t.reservations {
		l.Reservations.Add(r.bytes)
	}
}
