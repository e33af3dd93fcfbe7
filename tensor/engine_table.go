package tensor

import (
	"slices"
	"unsafe"

	gtensor "gorgonia.org/tensor"
)

// engineTable finds memory by any address inside it: the library forgets what Alloc returned and keeps the
// address. The memory of each page is in address order; what spans pages is in each of them.
type engineTable struct {
	pages map[uintptr][]*engineMemory
}

// enginePage is the size in bytes, as a power of two, of a page: a small segment of the cache.
const enginePage = 21

// engineRef is one reference to memory: the tensor's own, or that of a view.
type engineRef struct {
	mem          *engineMemory
	view, parent *gtensor.Dense // of a view; the parent is kept alive
	scope        *EngineScope   // nil: dropped
}

func (t *engineTable) insert(m *engineMemory) {
	if t.pages == nil {
		t.pages = make(map[uintptr][]*engineMemory)
	}
	first, last := m.pages()
	for p := first; p <= last; p++ {
		i, _ := search(t.pages[p], m.Uintptr())
		t.pages[p] = slices.Insert(t.pages[p], i, m)
	}
}

func (t *engineTable) remove(m *engineMemory) {
	first, last := m.pages()
	for p := first; p <= last; p++ {
		if i, ok := search(t.pages[p], m.Uintptr()); ok {
			t.pages[p] = slices.Delete(t.pages[p], i, i+1)
		}
	}
}

// find returns the memory that has the byte at addr, or nil.
func (t *engineTable) find(addr uintptr) *engineMemory {
	page := t.pages[addr>>enginePage]
	i, exact := search(page, addr)
	if !exact {
		i--
	}
	if i < 0 || addr-page[i].Uintptr() >= page[i].MemSize() {
		return nil
	}
	return page[i]
}

func (m *engineMemory) pages() (first, last uintptr) {
	return m.Uintptr() >> enginePage, (m.Uintptr() + m.MemSize() - 1) >> enginePage
}

func search(page []*engineMemory, addr uintptr) (int, bool) {
	return slices.BinarySearchFunc(page, addr, func(m *engineMemory, addr uintptr) int {
		switch a := m.Uintptr(); {
		case a < addr:
			return -1
		case a > addr:
			return 1
		}
		return 0
	})
}

// address is where b starts.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// insert makes m live, in the innermost scope. It reports false if the engine is closed.
func (e *Engine) insert(m *engineMemory) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return false
	}
	e.table.insert(m)
	m.owner.mem = m
	e.link(&m.owner)
	return true
}

// find returns the live memory that b starts in, or nil.
func (e *Engine) find(b []byte) *engineMemory {
	if len(b) == 0 {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.table.find(address(b))
}

// link counts a new reference, in the innermost scope. e.mu is held.
func (e *Engine) link(r *engineRef) {
	r.mem.refs++
	r.scope = e.scope
	r.scope.refs[r] = struct{}{}
	if r.view != nil {
		e.views[r.view] = r
	}
}

// unlink drops a reference, and reports whether it was the last one of its memory, whose block the caller
// frees after e.mu, which is held.
func (e *Engine) unlink(r *engineRef) (last bool) {
	delete(r.scope.refs, r)
	r.scope = nil
	if r.view != nil {
		delete(e.views, r.view)
	}
	r.mem.refs--
	if r.mem.refs > 0 {
		return false
	}
	e.table.remove(r.mem)
	return true
}
