package memcache

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// driverRanges are the ranges of addresses that the driver gave and has not taken back, in order. A driver that gives the
// address 0, or memory that overlaps what it gave before, as one does that gives less than it was asked for, would let
// blocks overlap: two tensors would overwrite each other much later. The cache finds out before it hands any of it out,
// and the request fails. It costs a binary search for each call of the driver, which itself takes microseconds and more.
// Guarded by the growth lock.
type driverRanges []addressRange

// addressRange is the addresses from, and up to but without to.
type addressRange struct{ from, to device.Ptr }

// find returns the number of the first range that ends after p.
func (l driverRanges) find(p device.Ptr) int {
	i, _ := slices.BinarySearchFunc(l, p, func(c addressRange, p device.Ptr) int {
		if c.to <= p {
			return -1
		}
		return 1
	})
	return i
}

// add enters what the driver gave, unless it can't be true. What is refused is not returned to the driver: what it has
// there is not known.
func (l *driverRanges) add(p device.Ptr, bytes int64) error {
	to := p + device.Ptr(bytes)
	if p == 0 || to < p {
		return fmt.Errorf("the driver gave %s at an address that can't be", sizes.Format(bytes))
	}
	i := l.find(p)
	if i < len(*l) && (*l)[i].from < to {
		return fmt.Errorf("the driver gave %s that overlap memory that it gave before", sizes.Format(bytes))
	}
	*l = slices.Insert(*l, i, addressRange{p, to})
	return nil
}

// remove takes out a range that the driver took back.
func (l *driverRanges) remove(p device.Ptr) {
	if i := l.find(p); i < len(*l) && (*l)[i].from == p {
		*l = slices.Delete(*l, i, i+1)
	}
}
