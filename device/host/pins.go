package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/race"
)

// use is one range that an operation names. A range that spans several mappings has a use for each, and
// the first has all of the bytes.
type use struct {
	seg   *segment
	bytes []byte
	write bool
}

// uses are the ranges that an operation names. While it is queued nothing they are in is freed.
type uses struct {
	n    int
	item [4]use
	more *uses
	last *uses // of the first: where the next use goes, or nil if that is here

	capture *capture // of the first: what is named is for a graph, and not to be freed before it
}

//go:norace
func (u *uses) add(x use) {
	to := u
	if u.last != nil {
		to = u.last
	}
	if to.n == len(to.item) {
		if to.more == nil { // else it is there from another operation
			to.more = new(uses)
		}
		to = to.more
		u.last = to
	}
	to.item[to.n] = x
	to.n++
}

// name adds the range [addr, addr+bytes) to u. onHost asks for pinned or registered memory.
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

// nameLaunch adds the ranges of a kernel that have bytes in them to u. If one is refused, it is wrong, else that is nil.
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

// nameElsewhere is nameKernels for another device's memory. The lock is given up meanwhile.
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

// nameKernels is nameLocked for a kernel, which has its memory's bytes already: where nothing is told to the race detector, its
// uses only keep the memory, and one of a segment does.
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

// count counts a use of s. The caller holds the table's lock.
//
//go:norace
func (u *uses) count(s *segment) {
	s.named++
	if u.capture != nil {
		s.captured++
	}
}

// has reports whether one of the first uses is of s.
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

// bytes is the memory of a range, which nothing holds.
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

// span is the memory of a range, and the segments that it is in, from the at-th to the last. Segments that
// a Free waits for are found if dying says so: the operations that it waits for use them. The caller holds
// the lock.
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

// dropCaptured lets what a graph used be freed.
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

// acquire orders the operation, which starts, after those that used mapped memory at its addresses before.
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

// release is for those that use mapped memory at the addresses after.
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

// declare tells the race detector what the operation is about to read and write.
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
