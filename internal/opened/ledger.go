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
	Module
	Communicator
	Reclaimer
	Observer
)

var kinds = [...]string{"device memory", "pinned memory", "registered slice", "reservation",
	"mapping", "event", "timed event", "stream", "graph", "module", "communicator",
	"reclaimer", "observer"}

// String is the kind in words.
func (k Kind) String() string { return kinds[k] }

// EventKind is the kind of an event.
func EventKind(timed bool) Kind {
	if timed {
		return TimedEvent
	}
	return Event
}

// depth is how many callers of a call site are kept: as many as let a map hold an entry in place,
// so that opening and closing a handle allocates nothing.
const depth = 14

type site struct {
	pcs [depth]uintptr
	n   uint8
}

// note makes s the call site, without so many of the innermost callers.
func (s *site) note(skip int) { s.n = uint8(runtime.Callers(skip+2, s.pcs[:])) }

// Ledger records the open handles of one device or cache, or is that of a task, which has none. It
// is safe for concurrent use, and its nil value records nothing.
type Ledger struct {
	what   string
	device uint64
	made   site

	mu     sync.Mutex               // a leaf
	open   map[unsafe.Pointer]entry // the key keeps the handle alive, so that its address stays its own
	site   site                     // of Add: scratch, which would escape from its stack
	closed bool

	next *Ledger // in watched
}

type entry struct {
	opened site
	kind   Kind
}

// watched lists the ledgers that are open, or were closed with open handles.
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

// New returns a ledger for what belongs to the device with that ID, or nil before [Watch].
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

// Add records a handle that was opened.
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

// Remove records that the handle was closed. A handle that is not open is ignored: handles may be
// closed twice, and after their device.
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

// Close ends the ledger, as its device or cache closes. Handles that are open then stay in it for
// [Take]; with excused they are forgotten, because a device that has failed takes none back.
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

// take removes the first ledger from watched that is asked for; nil: there is none.
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
