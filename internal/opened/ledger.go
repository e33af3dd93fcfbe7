package opened

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// Kind is what a handle is.
type Kind uint8

// The kinds of handles.
const (
	Memory Kind = iota
	Pinned
	Registered
	Reservation
	Mapping
	Event
	TimedEvent
	Stream
	Graph
	Communicator
	Reclaimer
	Observer
)

var kinds = [...]string{"device memory", "pinned memory", "registered slice", "reservation", "mapping", "event",
	"timed event", "stream", "graph", "communicator", "reclaimer", "observer"}

// String is the kind in words.
func (k Kind) String() string { return kinds[k] }

// EventKind is the kind of an event.
func EventKind(timed bool) Kind {
	if timed {
		return TimedEvent
	}
	return Event
}

// depth is how many callers of a call site are kept.
const depth = 16

type site struct {
	pcs [depth]uintptr
	n   int
}

// buckets is the size of a ledger's hash table, which does not grow.
const buckets = 256

// Ledger records the open handles of one device or cache. It is safe for concurrent use, and its nil value records
// nothing.
type Ledger struct {
	what   string
	device uint64
	made   site

	mu     sync.Mutex
	table  [buckets]*entry
	spare  *entry // used again, so that opening and closing a handle allocates nothing
	n      int
	closed bool

	next *Ledger // in watched
}

type entry struct {
	handle unsafe.Pointer // keeps the handle alive, so that its address stays its own
	kind   Kind
	opened site
	next   *entry
}

// watched lists the ledgers that are open, or were closed with open handles.
var watched struct {
	mu    sync.Mutex
	on    bool
	first *Ledger
}

// Watch makes [New] return ledgers from now on.
//
//go:norace
func Watch() {
	race.Disable()
	watched.mu.Lock()
	watched.on = true
	watched.mu.Unlock()
	race.Enable()
}

// New returns a ledger for what belongs to the device with that ID, or nil before [Watch].
//
//go:norace
func New(what string, device uint64) *Ledger {
	race.Disable()
	watched.mu.Lock()
	var l *Ledger
	if watched.on {
		l = &Ledger{what: what, device: device, next: watched.first}
		l.made.n = runtime.Callers(2, l.made.pcs[:])
		watched.first = l
	}
	watched.mu.Unlock()
	race.Enable()
	return l
}

// bucket is a prime's multiple of the address, without its low bits, which are alike.
func bucket(handle unsafe.Pointer) int {
	return int(uint32(uintptr(handle)>>4) * 2654435761 >> 24)
}

// Add records a handle that was opened.
//
//go:norace
func (l *Ledger) Add(k Kind, handle unsafe.Pointer) {
	if l != nil {
		l.add(k, handle)
	}
}

//go:norace
func (l *Ledger) add(k Kind, handle unsafe.Pointer) {
	race.Disable()
	l.mu.Lock()
	e := l.spare
	if e == nil {
		e = new(entry)
	} else {
		l.spare = e.next
	}
	e.handle, e.kind = handle, k
	e.opened.n = runtime.Callers(3, e.opened.pcs[:])
	if !l.closed {
		at := &l.table[bucket(handle)]
		e.next, *at = *at, e
		l.n++
	}
	l.mu.Unlock()
	race.Enable()
}

// Remove records that the handle was closed. A handle that is not open is ignored: handles may be closed twice, and
// after their device.
//
//go:norace
func (l *Ledger) Remove(handle unsafe.Pointer) {
	if l != nil {
		l.remove(handle)
	}
}

//go:norace
func (l *Ledger) remove(handle unsafe.Pointer) {
	race.Disable()
	l.mu.Lock()
	for at := &l.table[bucket(handle)]; *at != nil && !l.closed; at = &(*at).next {
		if (*at).handle == handle {
			e := *at
			*at = e.next
			e.handle, e.next = nil, l.spare
			l.spare = e
			l.n--
			break
		}
	}
	l.mu.Unlock()
	race.Enable()
}

// Close ends the ledger, as its device or cache closes. Handles that are open then stay in it for [Take]; with excused
// they are forgotten, because a device that has failed takes none back.
//
//go:norace
func (l *Ledger) Close(excused bool) {
	if l == nil {
		return
	}
	race.Disable()
	l.mu.Lock()
	l.closed = true
	left := l.n
	l.mu.Unlock()
	if left == 0 || excused {
		l.forget()
	}
	race.Enable()
}

// forget takes l out of watched.
//
//go:norace
func (l *Ledger) forget() {
	watched.mu.Lock()
	for at := &watched.first; *at != nil; at = &(*at).next {
		if *at == l {
			*at = l.next
			break
		}
	}
	watched.mu.Unlock()
}
