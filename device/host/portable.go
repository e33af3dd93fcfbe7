package host

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// Memory of AllocPinned is portable: streams of every host device of the process may name it. A device finds its own
// memory without looking here. Only what it does not have is looked for among the other devices that have pinned
// memory, one lock at a time, and is held in the table of its device. So FreePinned waits for the operations of all
// devices.

// portable lists the tables that have pinned memory. Its lock is hidden from the race detector, and is taken before a
// table's.
var portable struct {
	mu    sync.Mutex
	first *table
}

// share puts t into the list if it has pinned memory, and takes it out if not.
//
//go:norace
func (t *table) share() {
	race.Disable()
	portable.mu.Lock()
	t.mu.Lock()
	shared := !t.closed && t.pinnedBytes > 0
	t.mu.Unlock()
	at := &portable.first
	for *at != nil && *at != t {
		at = &(*at).another
	}
	switch {
	case shared && *at == nil:
		*at = t
	case !shared && *at == t:
		*at, t.another = t.another, nil
	}
	portable.mu.Unlock()
	race.Enable()
}

// elsewhere is the table of another device whose pinned memory addr lies in, or nil.
//
//go:norace
func (t *table) elsewhere(addr uintptr) *table {
	race.Disable()
	portable.mu.Lock()
	o := portable.first
	for ; o != nil; o = o.another {
		if o != t && o.pins(addr) {
			break
		}
	}
	portable.mu.Unlock()
	race.Enable()
	return o
}

// pins reports whether addr lies in pinned memory of t.
//
//go:norace
func (t *table) pins(addr uintptr) bool {
	t.mu.Lock()
	at := t.above(addr)
	ok := at < t.n && t.segs[at].kind == pinned && t.segs[at].base <= addr
	t.mu.Unlock()
	return ok
}
