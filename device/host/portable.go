package host

import (
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
)

// Memory of AllocPinned is portable: streams of every host device of the process may name it. A
// device looks for memory in its own table first, and then in those of other devices with pinned
// memory, holding one table's lock at a time. The use is counted in the owner's table, so
// FreePinned waits for the operations of all devices.

// portable lists the tables with pinned memory. Its lock is hidden from the race detector, and is
// taken before a table's lock.
var portable struct {
	mu    sync.Mutex
	first *table
}

// share adds t to the list if it has pinned memory, and removes it otherwise.
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

// elsewhere returns the table of another device whose pinned memory contains addr, or nil.
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
