package host

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// kind says what a segment is.
type kind uint8

const (
	allocated  kind = iota // by Alloc
	mapped                 // by Map
	pinned                 // by AllocPinned
	registered             // by Register
)

//go:norace
func (k kind) onHost() bool { return k >= pinned }

// ledger is the kind's name in the device's ledger of open handles.
//
//go:norace
func (k kind) ledger() opened.Kind {
	switch k {
	case allocated:
		return opened.Memory
	case mapped:
		return opened.Mapping
	case pinned:
		return opened.Pinned
	default:
		return opened.Registered
	}
}

// segment is memory that operations may name.
type segment struct {
	base     uintptr // of data, as operations name it
	data     []byte
	kind     kind
	home     *reservation // of mapped
	table    *table       // that it is in
	dying    bool         // waits for its last operation; no other may name it
	named    int64        // times that operations have named it; under the table's lock
	captured int64        // of these, by operations of graphs, which keep it
	_        [64]byte     // those who queue write what is above, and streams what is below

	dropped atomic.Int64 // how many of these are over
	await   atomic.Bool  // someone waits for all of them

	// Of mapped, in race builds: their addresses carry the edges to the operations from those that used the addresses
	// before, and from the operations.
	before, after byte
}

//go:norace
func (s *segment) end() uintptr { return s.base + uintptr(len(s.data)) }

//go:norace
func (t *table) newSegment(k kind, data []byte) *segment {
	s := &segment{base: address(data), data: data, kind: k}
	if !k.onHost() {
		s.base += t.apart
	}
	return s
}

// uses is how many queued operations name s. The caller holds the table's lock.
//
//go:norace
func (s *segment) uses() int64 { return s.named - s.dropped.Load() }

// reservation is address space of [Device.Reserve]. Fresh pages that nobody touches cost nothing.
type reservation struct {
	base   uintptr
	data   []byte
	mapped int64
	next   *reservation
	past   byte // its address carries the edges from what was unmapped, in race builds
}

//go:norace
func (r *reservation) end() uintptr { return r.base + uintptr(len(r.data)) }

// table has all memory of a device, and counts it. Its lock is hidden from the race detector, as the
// queues' are: naming memory orders nothing. It is held for look-ups and insertions only.
type table struct {
	mu   sync.Mutex
	idle sync.Cond // a segment that someone waits for has a use less

	segs []*segment // sorted by base; the first n
	n    int

	reservations *reservation

	next                  uintptr // where the next memory of a dry device is; 0: it is not dry
	apart                 uintptr // how far the device's addresses are from the process's: 0, or see hidden.go
	capacity, used        int64   // of device memory
	reservable, reserved  int64   // of address space
	pinnable, pinnedBytes int64   // of AllocPinned
	piece                 int64   // the most of one call: more than the machine's RAM would end the process
	closed                bool
	another               *table // in the list of portable
	opened                *opened.Ledger
}

//go:norace
func (t *table) lock() {
	race.Disable()
	t.mu.Lock()
}

//go:norace
func (t *table) unlock() {
	t.mu.Unlock()
	race.Enable()
}

// above is the index of the first segment that ends above addr. The caller holds the lock.
//
//go:norace
func (t *table) above(addr uintptr) int {
	lo, hi := 0, t.n
	for lo < hi {
		if mid := int(uint(lo+hi) / 2); t.segs[mid].end() > addr {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// insert adds s, unless it overlaps another segment or the table is closed.
//
//go:norace
func (t *table) insert(s *segment) bool {
	at := t.above(s.base)
	if t.closed || at < t.n && t.segs[at].base < s.end() {
		return false
	}
	if t.n == len(t.segs) {
		grown := make([]*segment, 2*t.n+16)
		for i := 0; i < t.n; i++ {
			grown[i] = t.segs[i]
		}
		t.segs = grown
	}
	for i := t.n; i > at; i-- {
		t.segs[i] = t.segs[i-1]
	}
	t.segs[at] = s
	t.n++
	s.table = t
	t.opened.Add(s.kind.ledger(), unsafe.Pointer(s))
	return true
}

// remove takes out the n segments from index at on.
//
//go:norace
func (t *table) remove(at, n int) {
	for i := at; i < t.n; i++ {
		if i+n < t.n {
			t.segs[i] = t.segs[i+n]
		} else {
			t.segs[i] = nil
		}
	}
	t.n -= n
}

// quiet waits until no queued operation names s, which is dying. The lock is given up meanwhile.
//
//go:norace
func (t *table) quiet(s *segment) {
	s.await.Swap(true) // in race builds a Store may come after the load of what was dropped
	for s.uses() > 0 {
		t.idle.Wait()
	}
}

// find returns the live segment that starts at addr and is of kind k, or nil.
//
//go:norace
func (t *table) find(addr uintptr, k kind) *segment {
	if at := t.above(addr); at < t.n {
		if s := t.segs[at]; s.base == addr && s.kind == k && !s.dying {
			return s
		}
	}
	return nil
}
