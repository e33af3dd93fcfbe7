package host

import (
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// kind is the origin of a segment.
type kind uint8

const (
	allocated  kind = iota // by Alloc
	mapped                 // by Map
	pinned                 // by AllocPinned
	registered             // by Register
)

//go:norace
func (k kind) onHost() bool { return k >= pinned }

// ledger returns the kind's name in the device's ledger of open handles.
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
	base     uintptr // the address of data as operations name it
	data     []byte
	kind     kind
	home     *reservation // of mapped segments
	table    *table       // the table that contains it
	dying    bool         // a Free waits for its last operation; no new operation may name it
	named    int64        // number of uses by operations so far; guarded by the table's lock
	captured int64        // those of captured operations, which keep it
	// Separates the fields above, which callers write, from those below, which streams write.
	_ [64]byte

	dropped atomic.Int64 // number of these uses that have ended
	await   atomic.Bool  // a caller waits until all of them have ended

	// Of mapped segments in race builds. Their addresses carry the edges from earlier users of the
	// addresses to the operations, and from the operations to later users.
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

// uses returns the number of queued operations that name s. The caller holds the table's lock.
//
//go:norace
func (s *segment) uses() int64 { return s.named - s.dropped.Load() }

// reservation is address space of [Device.Reserve]. Fresh pages cost nothing until they are
// accessed.
type reservation struct {
	base   uintptr
	data   []byte
	mapped int64
	next   *reservation
	// Its address carries the edges from unmapped memory, in race builds.
	past byte
}

//go:norace
func (r *reservation) end() uintptr { return r.base + uintptr(len(r.data)) }

// table holds all memory of a device and accounts for it. Its lock is hidden from the race
// detector, like those of the queues, because naming memory must not order anything. It is held
// only for look-ups and insertions.
type table struct {
	mu   sync.Mutex
	idle sync.Cond // a segment that a caller waits for has lost a use

	segs []*segment // sorted by base; the first n
	n    int

	reservations *reservation

	next uintptr // address of the next memory of a dry device, or 0
	// Difference between the device's addresses and the process's, or 0; see hidden.go.
	apart                 uintptr
	capacity, used        int64 // of device memory
	reservable, reserved  int64 // of address space
	pinnable, pinnedBytes int64 // of AllocPinned
	// The most that one call may allocate: more than the machine's RAM would end the process.
	piece   int64
	closed  bool
	another *table // next in the list of portable
	opened  *opened.Ledger
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

// above returns the index of the first segment that ends above addr. The caller holds the lock.
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

// insert adds s. It returns false if s overlaps another segment or the table is closed.
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

// remove removes n segments from index at on.
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

// quiet waits until no queued operation names s, which is dying. It releases the lock meanwhile.
//
//go:norace
func (t *table) quiet(s *segment) {
	// Swap, because in race builds a Store may come after the load of dropped.
	s.await.Swap(true)
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
