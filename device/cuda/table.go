//go:build cuda

package cuda

import (
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// memory is one range that operations may name.
type memory struct {
	base, bytes uint64
	kind        kind
	home        uint64        // of a mapping: its reservation
	mapped      uint64        // of host memory: its address for kernels
	slice       []byte        // keeps registered memory alive
	holds       *atomic.Int64 // number of graphs and captures that keep it
}

type kind uint8

const (
	allocated  kind = iota // by Alloc
	mapping                // by Map
	pinned                 // by AllocPinned
	registered             // by Register
	alias                  // the device's address of host memory, if it differs
)

// kinds are the names in the ledger of open handles. An alias is not a handle.
var kinds = [alias]opened.Kind{allocated: opened.Memory, mapping: opened.Mapping, pinned: opened.Pinned,
	registered: opened.Registered}

func (k kind) onHost() bool { return k == pinned || k == registered }

// forKernels returns the address in m at which kernels find addr.
func (m *memory) forKernels(addr uint64) uint64 {
	if m.kind.onHost() {
		return m.mapped + (addr - m.base)
	}
	return addr
}

// table holds everything that operations may name, by address. Host and device memory share one
// address space.
//
// Each operation looks up every range that it names, whereas the ranges change rarely, because
// programs that allocate often use a cache. So look-ups take no lock: readers load the list, which
// is immutable, and search it by bisection. A change copies the list, under the lock, at a cost
// proportional to the number of ranges.
//
// If a caller wrongly frees a range during a call that names it, the range may be gone before the
// driver sees the operation. Unlike the host device's table, this one does not hold the memory of
// queued operations; the driver's frees wait for them.
type table struct {
	mu     sync.Mutex // held by changes
	all    atomic.Pointer[[]memory]
	opened *opened.Ledger // a handle is identified by the holds pointer of its memory
}

func (t *table) load() []memory {
	if p := t.all.Load(); p != nil {
		return *p
	}
	return nil
}

// above returns the index of the first range that starts beyond addr.
func above(all []memory, addr uint64) int {
	low, high := 0, len(all)
	for low < high {
		if mid := (low + high) / 2; all[mid].base <= addr {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low
}

func (t *table) add(m memory) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m.holds == nil {
		m.holds = new(atomic.Int64)
	}
	next := slices.Insert(slices.Clone(t.load()), above(t.load(), m.base), m)
	t.all.Store(&next)
	if m.kind != alias {
		t.opened.Add(kinds[m.kind], unsafe.Pointer(m.holds))
	}
}

// take removes the range of that kind that starts at base. ok is false if there is none or a graph
// holds it; held reports the latter.
func (t *table) take(base uint64, k kind) (m memory, ok, held bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	all := t.load()
	i := above(all, base) - 1
	for i >= 0 && all[i].base == base && all[i].kind != k {
		i--
	}
	if i < 0 || all[i].base != base {
		return memory{}, false, false
	}
	m = all[i]
	if m.holds.Load() > 0 {
		return m, false, true
	}
	next := slices.Delete(slices.Clone(all), i, i+1)
	t.all.Store(&next)
	if k != alias {
		t.opened.Remove(unsafe.Pointer(m.holds))
	}
	return m, true, false
}

// hold keeps the range or the mappings that contain [addr, addr+bytes) from being taken, and adds
// them to h. It returns false if they are not live. The lock keeps them live meanwhile.
func (t *table) hold(addr, bytes uint64, h holds) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _, ok := t.find(addr, bytes, false)
	all := t.load()
	for i := above(all, addr) - 1; ok && i < len(all) && all[i].base < addr+bytes; i++ {
		h.add(all[i].holds)
	}
	return ok
}

// overlaps reports whether host memory of the table overlaps [base, base+bytes).
func (t *table) overlaps(base, bytes uint64) bool {
	for _, m := range t.load() {
		if m.kind.onHost() && base < m.base+m.bytes && m.base < base+bytes {
			return true
		}
	}
	return false
}

// find reports whether [addr, addr+bytes) lies in one live range, or in adjacent mappings of one
// reservation.
func (t *table) find(addr, bytes uint64, onHost bool) (m memory, why backend.Miss, ok bool) {
	all := t.load()
	i := above(all, addr) - 1
	if i < 0 || addr-all[i].base >= all[i].bytes || onHost && !all[i].kind.onHost() {
		return memory{}, backend.Miss{}, false
	}
	m = all[i]
	offset, size := addr-m.base, m.bytes
	for i++; bytes > size-offset && m.kind == mapping && i < len(all); i++ {
		if all[i].home != m.home || all[i].kind != mapping || all[i].base != m.base+size {
			break
		}
		size += all[i].bytes
	}
	return m, backend.Miss{Live: true, Offset: int64(offset), Size: int64(size)}, bytes <= size-offset
}

// named checks a range of an operation.
func (d *Device) named(op string, addr uint64, bytes int64, onHost bool) error {
	_, err := d.locate(op, addr, bytes, onHost)
	return err
}

// locate checks a range of an operation, and returns its address for kernels. Memory of other open
// devices is valid, too, because the driver checks whether the devices can reach each other; for
// it, and for empty ranges, the address is 0.
func (d *Device) locate(op string, addr uint64, bytes int64, onHost bool) (uint64, error) {
	if bytes < 0 {
		return 0, d.self.Negative(op, bytes)
	}
	if bytes == 0 {
		return 0, nil
	}
	m, why, ok := d.table.find(addr, uint64(bytes), onHost)
	if ok {
		return m.forKernels(addr), nil
	}
	if !why.Live {
		for _, o := range drivers.others(d) {
			if _, _, ok := o.table.find(addr, uint64(bytes), onHost); ok {
				return 0, nil
			}
		}
	}
	return 0, d.unnamed(op, why, addr, bytes, onHost)
}

// unnamed returns the error of a range that can't be named.
func (d *Device) unnamed(op string, why backend.Miss, addr uint64, bytes int64, onHost bool) error {
	if err := d.stuckError(); err != nil {
		return err
	}
	return d.self.Missed(op, why, addr, bytes, onHost)
}
