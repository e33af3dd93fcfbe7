package gorgonia

import (
	"cmp"
	"slices"
	"unsafe"

	gtensor "gorgonia.org/tensor"
)

// table finds memory by any address inside it, because the library keeps only the address that
// Alloc returned. The memory of each page is in address order. Memory that spans several pages is
// in each of them.
type table struct {
	pages map[uintptr][]*memory
}

// pageBits is the logarithm of a page's size in bytes, which is that of a small segment of the
// cache.
const pageBits = 21

// ref is one reference to memory: the tensor's own, or a view's.
type ref struct {
	mem          *memory
	view, parent *gtensor.Dense // of a view; the parent is kept alive
	lifetime     *Lifetime      // nil after unlink
}

func (t *table) insert(m *memory) {
	if t.pages == nil {
		t.pages = make(map[uintptr][]*memory)
	}
	first, last := m.pages()
	for p := first; p <= last; p++ {
		i, _ := search(t.pages[p], m.Uintptr())
		t.pages[p] = slices.Insert(t.pages[p], i, m)
	}
}

func (t *table) remove(m *memory) {
	first, last := m.pages()
	for p := first; p <= last; p++ {
		if i, ok := search(t.pages[p], m.Uintptr()); ok {
			t.pages[p] = slices.Delete(t.pages[p], i, i+1)
		}
	}
}

// find returns the memory that contains the byte at addr, or nil.
func (t *table) find(addr uintptr) *memory {
	page := t.pages[addr>>pageBits]
	i, exact := search(page, addr)
	if !exact {
		i--
	}
	if i < 0 || addr-page[i].Uintptr() >= page[i].MemSize() {
		return nil
	}
	return page[i]
}

func (m *memory) pages() (first, last uintptr) {
	return m.Uintptr() >> pageBits, (m.Uintptr() + m.MemSize() - 1) >> pageBits
}

func search(page []*memory, addr uintptr) (int, bool) {
	return slices.BinarySearchFunc(page, addr, func(m *memory, addr uintptr) int { return cmp.Compare(m.Uintptr(), addr) })
}

// address returns the address of b's first byte.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

// insert adds m to the live memory, in the innermost lifetime. It returns false if the engine is
// closed.
func (h *heap) insert(m *memory) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return false
	}
	h.table.insert(m)
	m.owner.mem = m
	h.link(&m.owner)
	return true
}

// find returns the live memory that contains the first byte of b, or nil.
func (h *heap) find(b []byte) *memory {
	if len(b) == 0 {
		return nil
	}
	return h.findAt(address(b))
}

// findAt returns the live memory that contains the byte at addr, or nil.
func (h *heap) findAt(addr uintptr) *memory {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.table.find(addr)
}

// link adds a reference, in the innermost lifetime. The caller holds h.mu.
func (h *heap) link(r *ref) {
	r.mem.refs++
	r.lifetime = h.lifetime
	r.lifetime.refs[r] = struct{}{}
	if r.view != nil {
		h.views[r.view] = r
	}
}

// unlink drops a reference, and reports whether it was the last one of its memory. The caller holds
// h.mu, and frees the block after releasing it.
func (h *heap) unlink(r *ref) (last bool) {
	delete(r.lifetime.refs, r)
	r.lifetime = nil
	if r.view != nil {
		delete(h.views, r.view)
	}
	r.mem.refs--
	if r.mem.refs > 0 {
		return false
	}
	h.table.remove(r.mem)
	return true
}
