package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/accounting"
)

// The functions of this file take the table's lock and touch what it guards.

//go:norace
func (t *table) init(capacity, pinnable int64) {
	t.idle.L = &t.mu
	t.capacity, t.reservable, t.pinnable, t.piece = capacity, capacity+capacity/8, pinnable, maxPiece
}

// charge adds bytes to the account, one of t's, unless that exceeds limit or is more than one piece can
// have. It returns what one piece could have.
//
//go:norace
func (t *table) charge(account *int64, limit, bytes int64) (free int64, ok bool) {
	t.lock()
	free = min(limit-*account, t.piece)
	if bytes <= free {
		*account += bytes
		ok = true
	}
	t.unlock()
	return free, ok
}

// refund takes bytes off the account, and returns what is free then.
//
//go:norace
func (t *table) refund(account *int64, limit, bytes int64) (free int64) {
	t.lock()
	*account -= bytes
	free = limit - *account
	t.checkAccounts()
	t.unlock()
	return free
}

// checkAccounts reports bytes below zero, which are a mistake of this package. The caller holds the lock.
//
//go:norace
func (t *table) checkAccounts() {
	switch {
	case t.used < 0:
		accounting.Broken("host device", "bytes allocated", t.used)
	case t.reserved < 0:
		accounting.Broken("host device", "bytes reserved", t.reserved)
	case t.pinnedBytes < 0:
		accounting.Broken("host device", "bytes pinned", t.pinnedBytes)
	}
}

//go:norace
func (t *table) add(s *segment) bool {
	t.lock()
	ok := t.insert(s)
	t.unlock()
	return ok
}

// free removes the live segment of kind k that begins at addr, when no queued operation names it, and
// takes it off the account, if that is not nil. It reports whether there was one, and whether a graph holds it: then it stays.
//
//go:norace
func (t *table) free(addr uintptr, k kind, account *int64) (found, held bool) {
	t.lock()
	s := t.find(addr, k)
	held = s != nil && s.captured > 0
	if s != nil && !held {
		s.dying = true
		t.opened.Remove(unsafe.Pointer(s))
		t.quiet(s)
		if !t.closed {
			t.remove(t.above(addr), 1)
			if account != nil {
				*account -= int64(len(s.data))
				t.checkAccounts()
			}
		}
	}
	t.unlock()
	return s != nil, held
}

//go:norace
func (t *table) available() int64 {
	t.lock()
	free := t.capacity - t.used
	t.unlock()
	return free
}

// close lets go of all memory and says what there was.
//
//go:norace
func (t *table) close() backend.Leftover {
	t.lock()
	var l backend.Leftover
	for i := 0; i < t.n; i++ {
		switch s := t.segs[i]; {
		case s.dying: // a Free is under way
		case s.kind == allocated:
			l.Allocations.Add(int64(len(s.data)))
		case s.kind == mapped:
			l.Mappings.Add(int64(len(s.data)))
		case s.kind == pinned:
			l.Pinned.Add(int64(len(s.data)))
		default:
			l.Registered.Add(int64(len(s.data)))
		}
	}
	for r := t.reservations; r != nil; r = r.next {
		l.Reservations.Add(int64(len(r.data)))
	}
	t.segs, t.n, t.reservations = nil, 0, nil
	t.closed = true
	t.unlock()
	return l
}
