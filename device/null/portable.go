package null

import (
	"slices"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// portable holds the pinned memory of all null devices, because the streams of each may name it.
// Its lock, which also guards the uses of that memory, is taken after a device's lock.
var portable struct {
	mu      sync.Mutex
	spans   []*span
	changed chan struct{} // closed when a use ends; nil without waiters
}

// holdPortable adds a use to the pinned memory, of any device, that contains [p, p+bytes), and
// returns it, or nil.
func holdPortable(p device.Ptr, bytes int64) *span {
	portable.mu.Lock()
	defer portable.mu.Unlock()
	u := inside(portable.spans, p, bytes)
	if u != nil {
		u.uses++
	}
	return u
}

// letGo ends a use that holdPortable began.
func (u *span) letGo() {
	portable.mu.Lock()
	defer portable.mu.Unlock()
	u.uses--
	if portable.changed != nil {
		close(portable.changed)
		portable.changed = nil
	}
}

// addPortable adds s. It returns false if s overlaps pinned memory.
func addPortable(s *span) bool {
	portable.mu.Lock()
	defer portable.mu.Unlock()
	free := vacant(portable.spans, s.ptr, s.bytes)
	if free {
		portable.spans = insert(portable.spans, s)
	}
	return free
}

// vacantPortable reports whether s overlaps no pinned memory.
func vacantPortable(s *span) bool {
	portable.mu.Lock()
	defer portable.mu.Unlock()
	return vacant(portable.spans, s.ptr, s.bytes)
}

// takePortable removes d's pinned memory at p once its uses have ended. It returns false if there
// is none.
func (d *Device) takePortable(p device.Ptr) bool {
	portable.mu.Lock()
	defer portable.mu.Unlock()
	s := at(portable.spans, p)
	if s == nil || s.dying || s.owner != d {
		return false
	}
	s.dying = true
	d.opened.Remove(unsafe.Pointer(s))
	for s.uses > 0 {
		if portable.changed == nil {
			portable.changed = make(chan struct{})
		}
		changed := portable.changed
		portable.mu.Unlock()
		<-changed
		portable.mu.Lock()
	}
	portable.spans = remove(portable.spans, s)
	return true
}

// forgetPortable removes d's pinned memory, and adds it to l.
func (d *Device) forgetPortable(l *backend.Leftover) {
	portable.mu.Lock()
	defer portable.mu.Unlock()
	portable.spans = slices.DeleteFunc(portable.spans, func(s *span) bool {
		if s.owner == d {
			l.Pinned.Add(s.bytes)
		}
		return s.owner == d
	})
}
