package opened

import (
	"runtime"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/race"
)

// Kind is the kind of a handle.
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
	Module
	Communicator
	Reclaimer
	Observer
)

var kinds = [...]string{"device memory", "pinned memory", "registered slice", "reservation",
	"mapping", "event", "timed event", "stream", "graph", "module", "communicator",
	"reclaimer", "observer"}

// String returns the kind in words.
func (k Kind) String() string { return kinds[k] }

// EventKind returns the kind of an event.
func EventKind(timed bool) Kind {
	if timed {
		return TimedEvent
	}
	return Event
}

// depth is the number of callers of a call site that are kept. With at most 14 a map stores entries
// in place, so that opening and closing a handle needs no Go allocation.
const depth = 14

type site struct {
	pcs [depth]uintptr
	n   uint8
}

// note stores the call site in s, without the skip innermost callers.
func (s *site) note(skip int) { s.n = uint8(runtime.Callers(skip+2, s.pcs[:])) }

// Ledger records the open handles of one device or cache. The ledger of a task has no handles. A
// Ledger is safe for concurrent use. The nil *Ledger records nothing.
type Ledger struct {
	what   string
	device uint64
	made   site

	mu sync.Mutex // a leaf in the lock order
	// the key keeps the handle alive, so that its address is not reused
	open   map[unsafe.Pointer]entry
	site   site // scratch of Add, which would escape from the stack
	closed bool

	next *Ledger // in watched
}

type entry struct {
	opened site
	kind   Kind
}

// watched lists the ledgers that are open, or that were closed with open handles.
var watched struct {
	mu    sync.Mutex
	on    bool
	first *Ledger
}

// Watch makes [New] return ledgers from now on, except in race builds.
func Watch() {
	watched.mu.Lock()
	defer watched.mu.Unlock()
	watched.on = true
}

// New returns a ledger for an owner that belongs to the device with that ID, or nil before [Watch].
func New(what string, device uint64) *Ledger {
	if race.Enabled {
		return nil
	}
	watched.mu.Lock()
	defer watched.mu.Unlock()
	if !watched.on {
		return nil
	}
	l := &Ledger{what: what, device: device, open: map[unsafe.Pointer]entry{}, next: watched.first}
	l.made.note(1)
	watched.first = l
	return l
}

// Add records an opened handle.
func (l *Ledger) Add(k Kind, handle unsafe.Pointer) {
	if l != nil {
		l.add(k, handle)
	}
}

func (l *Ledger) add(k Kind, handle unsafe.Pointer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		l.site.note(2)
		l.open[handle] = entry{l.site, k}
	}
}

// Remove records that the handle was closed. It ignores a handle that is not open, because handles
// may be closed twice, and after their device.
func (l *Ledger) Remove(handle unsafe.Pointer) {
	if l != nil {
		l.remove(handle)
	}
}

func (l *Ledger) remove(handle unsafe.Pointer) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.closed {
		delete(l.open, handle)
	}
}

// Close ends the ledger when its device or cache closes. Handles that are still open stay in it for
// [Take]. With excused they are dropped, because a failed device closes no handles.
func (l *Ledger) Close(excused bool) {
	if l == nil {
		return
	}
	l.mu.Lock()
	l.closed = true
	left := len(l.open)
	l.mu.Unlock()
	if left == 0 || excused {
		take(func(o *Ledger) bool { return o == l })
	}
}

// take removes the first ledger in watched for which asked returns true, and returns it; nil: there
// is none.
func take(asked func(*Ledger) bool) *Ledger {
	watched.mu.Lock()
	defer watched.mu.Unlock()
	for at := &watched.first; *at != nil; at = &(*at).next {
		if l := *at; asked(l) {
			*at = l.next
			return l
		}
	}
	return nil
}
