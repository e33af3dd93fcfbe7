package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/accounting"
)

// The functions of this file take the table's lock.

//go:norace
func (t *table) init(capacity, pinnable int64) {
	t.idle.L = &t.mu
	t.capacity, t.reservable, t.pinnable, t.piece = capacity, capacity+capacity/8, pinnable, maxPiece
}

// charge adds bytes to the account, one of t's, unless the sum would exceed limit or bytes exceed
// the largest piece. It returns the largest piece that was available.
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

// refund subtracts bytes from the account and returns the bytes that are then available.
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

// checkAccounts reports negative accounts, which are a bug of this package. The caller holds the
// lock.
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

// free waits until no queued operation names the live segment of kind k that begins at addr,
// removes it, and subtracts it from account unless account is nil. found is false if there is no
// such segment. held is true if a graph holds the segment; then it stays.
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

// close drops all memory and reports what was still live.
//
//go:norace
func (t *table) close() backend.Leftover {
	t.lock()
	var l backend.Leftover
	for i := 0; i < t.n; i++ {
		switch s := t.segs[i]; {
		case s.dying: // a Free is in progress
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
