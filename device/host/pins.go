package host

import (
	"unsafe"

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
}

//go:norace
func (u *uses) add(x use) {
	to := u
	if u.last != nil {
		to = u.last
	}
	if to.n == len(to.item) {
		to.more = new(uses)
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
	race.Disable()
	t.mu.Lock()
	at := t.above(addr)
	if at < t.n && t.segs[at].base <= addr && !t.segs[at].dying && (!onHost || t.segs[at].kind.onHost()) {
		first := t.segs[at]
		offset := int64(addr - first.base)
		last, end := at, int64(len(first.data))
		for end-offset < bytes && first.kind == mapped && last+1 < t.n {
			s := t.segs[last+1]
			if s.home != first.home || s.base != t.segs[last].end() || s.dying {
				break
			}
			last++
			end += int64(len(s.data))
		}
		m = backend.Miss{Live: true, Offset: offset, Size: end}
		if bytes <= end-offset {
			data := first.data
			if last > at {
				from := int64(first.base - first.home.base)
				data = first.home.data[from : from+end]
			}
			for i := at; i <= last; i++ {
				t.segs[i].uses.Add(1)
				x := use{seg: t.segs[i]}
				if i == at {
					x.bytes, x.write = data[offset:offset+bytes:offset+bytes], write
				}
				u.add(x)
			}
			ok = true
		}
	}
	t.mu.Unlock()
	race.Enable()
	return m, ok
}

// drop ends the uses.
//
//go:norace
func (t *table) drop(u *uses) {
	race.Disable()
	for ; u != nil; u = u.more {
		for i := 0; i < u.n; i++ {
			if s := u.item[i].seg; s.uses.Add(-1) == 0 && s.await.Load() {
				t.mu.Lock()
				t.idle.Broadcast()
				t.mu.Unlock()
			}
		}
	}
	race.Enable()
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
