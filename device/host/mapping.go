package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// The functions of this file take the table's lock.

//go:norace
func (t *table) reserve(r *reservation) bool {
	t.lock()
	ok := !t.closed
	if ok {
		r.next = t.reservations
		t.reservations = r
		t.opened.Add(opened.Reservation, unsafe.Pointer(r))
	}
	t.unlock()
	return ok
}

// unreserve removes the reservation at addr, unless memory is mapped in it; mapped is the number of
// bytes.
//
//go:norace
func (t *table) unreserve(addr uintptr) (found bool, mapped int64) {
	t.lock()
	for at := &t.reservations; *at != nil; at = &(*at).next {
		if r := *at; r.base == addr {
			found, mapped = true, r.mapped
			if mapped == 0 {
				*at = r.next
				t.opened.Remove(unsafe.Pointer(r))
				t.reserved -= int64(len(r.data))
				t.checkAccounts()
			}
			break
		}
	}
	t.unlock()
	return found, mapped
}

// mapRange maps [addr, addr+bytes). found reports whether the range lies in one reservation, and ok
// whether it was unmapped.
//
//go:norace
func (t *table) mapRange(addr uintptr, bytes int64) (found, ok bool) {
	t.lock()
	for r := t.reservations; r != nil; r = r.next {
		if addr < r.base || addr >= r.end() {
			continue
		}
		from := int64(addr - r.base)
		if bytes > int64(len(r.data))-from {
			break
		}
		found = true
		s := t.newSegment(mapped, r.data[from:from+bytes:from+bytes])
		s.home = r
		if ok = t.insert(s); ok {
			handOver(&r.past, &s.before)
			r.mapped += bytes
		}
		break
	}
	t.unlock()
	return found, ok
}

// handOver, in race builds, orders everything released to from before everything that acquires to,
// because new memory reuses old addresses. It runs on a separate goroutine so that the caller gets
// no edge: Unmap waits for the operations that name the memory, but does not synchronize with their
// streams.
//
//go:norace
func handOver(from, to *byte) {
	if race.Enabled {
		done := make(chan struct{})
		go carry(from, to, done)
		<-done
	}
}

//go:norace
func carry(from, to *byte, done chan struct{}) {
	race.Acquire(unsafe.Pointer(from))
	race.ReleaseMerge(unsafe.Pointer(to))
	race.Disable()
	close(done)
	race.Enable()
}

// unmapRange unmaps [addr, addr+bytes) and subtracts it from the used bytes. whole reports whether
// the range consists of whole live mappings. held reports whether a graph holds one of them; then
// all stay mapped.
//
//go:norace
func (t *table) unmapRange(addr uintptr, bytes int64) (whole, held bool) {
	t.lock()
	at := t.above(addr)
	n := 0
	for left, base := bytes, addr; left > 0; n++ {
		if at+n >= t.n {
			n = -1
		} else if s := t.segs[at+n]; s.kind != mapped || s.dying || s.base != base || int64(len(s.data)) > left ||
			s.home != t.segs[at].home {
			n = -1
		}
		if n < 0 {
			break
		}
		held = held || t.segs[at+n].captured > 0
		left -= int64(len(t.segs[at+n].data))
		base = t.segs[at+n].end()
	}
	if n > 0 && !held {
		for i := at; i < at+n; i++ {
			t.segs[i].dying = true
			t.opened.Remove(unsafe.Pointer(t.segs[i]))
		}
		end := addr + uintptr(bytes)
		for done := addr; done < end && !t.closed; {
			// The index may have changed during a wait.
			i := t.above(done)
			s := t.segs[i]
			done = s.end()
			t.quiet(s)
			if t.closed {
				break
			}
			handOver(&s.after, &s.home.past)
			s.home.mapped -= int64(len(s.data))
			t.used -= int64(len(s.data))
			t.checkAccounts()
			t.remove(t.above(s.base), 1)
		}
	}
	t.unlock()
	return n > 0, held
}
