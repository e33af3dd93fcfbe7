package memcache

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/sizes"
)

// driverRanges is the sorted list of the address ranges that the driver has allocated and not
// freed. A faulty driver may return the address 0, or memory that overlaps an earlier allocation,
// for example if it allocates less than it was asked for. Blocks would then overlap, and two
// tensors would overwrite each other much later. The cache detects this before it uses the memory,
// and the request fails. The cost is a binary search per driver call, which itself takes
// microseconds or more. Guarded by the growth lock.
type driverRanges []addressRange

// addressRange is the half-open range [from, to).
type addressRange struct{ from, to device.Ptr }

// find returns the index of the first range that ends after p.
func (l driverRanges) find(p device.Ptr) int {
	i, _ := slices.BinarySearchFunc(l, p, func(c addressRange, p device.Ptr) int {
		if c.to <= p {
			return -1
		}
		return 1
	})
	return i
}

// add inserts a range that the driver allocated, and refuses an impossible one. A refused range is
// not freed, because it is unknown what the driver holds there.
func (l *driverRanges) add(p device.Ptr, bytes int64) error {
	to := p + device.Ptr(bytes)
	if p == 0 || to < p {
		return fmt.Errorf("the driver returned an impossible address for %s", sizes.Format(bytes))
	}
	i := l.find(p)
	if i < len(*l) && (*l)[i].from < to {
		return fmt.Errorf("the driver returned %s that overlap an earlier allocation", sizes.Format(bytes))
	}
	*l = slices.Insert(*l, i, addressRange{p, to})
	return nil
}

// remove deletes a range that the driver freed.
func (l *driverRanges) remove(p device.Ptr) {
	if i := l.find(p); i < len(*l) && (*l)[i].from == p {
		*l = slices.Delete(*l, i, i+1)
	}
}
