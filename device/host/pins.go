package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/race"
)

// use is one range that an operation names. A range that spans several mappings has a use for each
// of them, and the first one has all of the bytes.
type use struct {
	seg   *segment
	bytes []byte
	write bool
}

// uses holds the ranges that an operation names. While it is queued their memory is not freed.
type uses struct {
	n    int
	item [4]use
	more *uses
	// In the first of the list: where the next use goes, or nil if that is the first itself.
	last *uses

	// In the first of the list: the memory is for a graph, and must not be freed before it.
	capture *capture
}

//go:norace
func (u *uses) add(x use) {
	to := u
	if u.last != nil {
		to = u.last
	}
	if to.n == len(to.item) {
		if to.more == nil { // else it is left from another operation
			to.more = new(uses)
		}
		to = to.more
		u.last = to
	}
	to.item[to.n] = x
	to.n++
}

// name adds the range [addr, addr+bytes) to u. If onHost is set it must be pinned or registered
// memory.
//
//go:norace
func (t *table) name(u *uses, addr uintptr, bytes int64, write, onHost bool) (m backend.Miss, ok bool) {
	t.lock()
	m, ok = t.nameLocked(u, addr, bytes, write, onHost)
	t.unlock()
	if !m.Live {
		if o := t.elsewhere(addr); o != nil {
			o.lock()
			m, ok = o.nameLocked(u, addr, bytes, write, onHost)
			o.unlock()
		}
	}
	return m, ok
}

// nameLaunch adds the kernel's ranges that are not empty to u. It returns the first invalid range
// as wrong, or nil.
//
//go:norace
func (t *table) nameLaunch(u *uses, l *device.Launch) (wrong *device.Range, m backend.Miss) {
	t.lock()
	if wrong, m = t.nameRanges(u, l.Reads, false); wrong == nil {
		wrong, m = t.nameRanges(u, l.Writes, true)
	}
	t.unlock()
	return wrong, m
}

//go:norace
func (t *table) nameRanges(u *uses, ranges []device.Range, write bool) (wrong *device.Range, m backend.Miss) {
	for i := range ranges {
		r := &ranges[i]
		if r.Bytes == 0 {
			continue
		}
		ok := false
		if r.Bytes > 0 {
			m, ok = t.nameKernels(u, inProcess(r.Ptr), r.Bytes, write)
			if !m.Live {
				m, ok = t.nameElsewhere(u, inProcess(r.Ptr), r.Bytes, write)
			}
		}
		if !ok {
			return r, m
		}
	}
	return nil, m
}

// nameElsewhere is nameKernels for another device's memory. It releases the lock meanwhile.
//
//go:norace
func (t *table) nameElsewhere(u *uses, addr uintptr, bytes int64, write bool) (m backend.Miss, ok bool) {
	t.unlock()
	if o := t.elsewhere(addr); o != nil {
		o.lock()
		m, ok = o.nameKernels(u, addr, bytes, write)
		o.unlock()
	}
	t.lock()
	return m, ok
}

// nameKernels is nameLocked for a kernel, which does not need the bytes. Without the race detector
// the uses only keep the memory alive, so one use of each segment is enough.
//
//go:norace
func (t *table) nameKernels(u *uses, addr uintptr, bytes int64, write bool) (m backend.Miss, ok bool) {
	if race.Enabled {
		return t.nameLocked(u, addr, bytes, write, false)
	}
	_, at, last, m, ok := t.span(addr, bytes, false, false)
	for i := at; ok && i <= last; i++ {
		if s := t.segs[i]; !u.has(s) {
			u.count(s)
			u.add(use{seg: s})
		}
	}
	return m, ok
}

// count adds a use of s. The caller holds the table's lock.
//
//go:norace
func (u *uses) count(s *segment) {
	s.named++
	if u.capture != nil {
		s.captured++
	}
}

// has reports whether one of the first uses is of s. It does not search u.more.
//
//go:norace
func (u *uses) has(s *segment) bool {
	for i := range u.n {
		if u.item[i].seg == s {
			return true
		}
	}
	return false
}

//go:norace
func (t *table) nameLocked(u *uses, addr uintptr, bytes int64, write, onHost bool) (m backend.Miss, ok bool) {
	data, at, last, m, ok := t.span(addr, bytes, onHost, false)
	if ok {
		for i := at; i <= last; i++ {
			u.count(t.segs[i])
			x := use{seg: t.segs[i]}
			if i == at {
				x.bytes, x.write = data, write
			}
			u.add(x)
		}
	}
	return m, ok
}

// bytes returns the memory of a range without a use that would keep it.
//
//go:norace
func (t *table) bytes(addr uintptr, bytes int64) (data []byte, m backend.Miss, ok bool) {
	t.lock()
	data, _, _, m, ok = t.span(addr, bytes, false, true)
	t.unlock()
	if !m.Live {
		if o := t.elsewhere(addr); o != nil {
			o.lock()
			data, _, _, m, ok = o.span(addr, bytes, false, true)
			o.unlock()
		}
	}
	return data, m, ok
}

// span returns the memory of a range, and the indices at to last of its segments. If dying is set
// it also finds segments for which a Free waits, because the operations that the Free waits for use
// them. The caller holds the lock.
//
//go:norace
func (t *table) span(addr uintptr, bytes int64, onHost, dying bool) (data []byte, at, last int, m backend.Miss, ok bool) {
	at = t.above(addr)
	if at < t.n && t.segs[at].base <= addr && (dying || !t.segs[at].dying) && (!onHost || t.segs[at].kind.onHost()) {
		first := t.segs[at]
		offset := int64(addr - first.base)
		end := int64(len(first.data))
		for last = at; end-offset < bytes && first.kind == mapped && last+1 < t.n; last++ {
			s := t.segs[last+1]
			if s.home != first.home || s.base != t.segs[last].end() || s.dying && !dying {
				break
			}
			end += int64(len(s.data))
		}
		m = backend.Miss{Live: true, Offset: offset, Size: end}
		if bytes <= end-offset {
			data = first.data
			if last > at {
				from := int64(first.base - first.home.base)
				data = first.home.data[from : from+end]
			}
			data, ok = data[offset:offset+bytes:offset+bytes], true
		}
	}
	return data, at, last, m, ok
}

// drop ends the uses.
//
//go:norace
func (u *uses) drop() {
	race.Disable()
	if u.capture != nil {
		u.dropCaptured()
	}
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			s := u.item[i].seg
			s.dropped.Add(1)
			if s.await.Load() {
				s.table.mu.Lock()
				s.table.idle.Broadcast()
				s.table.mu.Unlock()
			}
		}
	}
	race.Enable()
}

// dropCaptured lets the memory that a graph used be freed.
//
//go:norace
func (u *uses) dropCaptured() {
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			s := u.item[i].seg
			s.table.mu.Lock()
			s.captured--
			s.table.mu.Unlock()
		}
	}
}

// acquire orders the starting operation after the earlier users of mapped memory at its addresses.
//
//go:norace
func (u *uses) acquire() {
	if !race.Enabled {
		return
	}
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			if s := u.item[i].seg; s.kind == mapped {
				race.Acquire(unsafe.Pointer(&s.before))
			}
		}
	}
}

// release orders the operation before the later users of mapped memory at its addresses.
//
//go:norace
func (u *uses) release() {
	if !race.Enabled {
		return
	}
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			if s := u.item[i].seg; s.kind == mapped {
				race.ReleaseMerge(unsafe.Pointer(&s.after))
			}
		}
	}
}

// declare reports the operation's reads and writes to the race detector.
//
//go:norace
func (u *uses) declare() {
	if !race.Enabled {
		return
	}
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			if x := &u.item[i]; x.write {
				race.Write(x.bytes)
			} else {
				race.Read(x.bytes)
			}
		}
	}
}
