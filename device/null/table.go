package null

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
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

// left is an error that says what is live, or nil.
func (t *table) left() error {
	var counts [4]int
	var sums [4]int64
	for _, s := range t.spans {
		counts[s.kind]++
		sums[s.kind] += s.bytes
	}
	var text string
	for k, name := range [...]string{"allocated", "mapped", "pinned", "registered"} {
		if counts[k] > 0 {
			text += fmt.Sprintf("; %d ranges of %s are still %s", counts[k], humanize.IBytes(uint64(sums[k])), name)
		}
	}
	if n := len(t.reservations); n > 0 {
		text += fmt.Sprintf("; %d reservations are left", n)
	}
	if text == "" {
		return nil
	}
	return &device.Error{Op: "Close", Device: "null", Detail: text[2:], Err: errLeft}
}

var errLeft = fmt.Errorf("memory is still in use")
