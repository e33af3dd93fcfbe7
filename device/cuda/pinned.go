//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// maxHost exceeds the memory of any machine, and sums of addresses below it don't overflow.
const maxHost = 1 << 46

func (d *Device) AllocPinned(bytes int64) ([]byte, error) {
	if err := d.enter("AllocPinned"); err != nil {
		return nil, err
	}
	defer d.gate.Leave()
	if bytes <= 0 {
		return nil, d.self.BadSize("AllocPinned", bytes)
	}
	b, code := d.pin(bytes)
	if code == device.CodeOutOfMemory {
		return nil, &device.Error{Op: "AllocPinned", Device: d.name, Bytes: bytes, Code: device.CodeOutOfMemory,
			Err: device.ErrOutOfMemory, Detail: "the machine has too little memory that can be pinned"}
	}
	if err := d.check("AllocPinned", bytes, code); err != nil {
		return nil, err
	}
	if err := d.hasAddress("AllocPinned", bytes, address(b)); err != nil {
		return nil, err
	}
	if err := d.addHost("AllocPinned", memory{base: address(b), bytes: uint64(bytes), kind: pinned}); err != nil {
		C.cistern_host_free(d.c, C.uint64_t(address(b)))
		return nil, err
	}
	return b, nil
}

// pin allocates pinned memory, and returns the driver's code. The memory is nil if the driver
// returned none.
func (d *Device) pin(bytes int64) ([]byte, C.int) {
	if bytes > maxHost {
		return nil, device.CodeOutOfMemory
	}
	var p C.uint64_t
	if code := C.cistern_host_alloc(d.c, C.size_t(bytes), &p); code != codeSuccess {
		return nil, code
	}
	if p == 0 {
		return nil, codeSuccess
	}
	return unsafe.Slice((*byte)(*(*unsafe.Pointer)(unsafe.Pointer(&p))), bytes), codeSuccess
}

// addHost adds host memory to the table, with its address for kernels. On most machines that is the
// same address. If it differs, addHost adds it as an alias, so that launches may name it.
func (d *Device) addHost(op string, m memory) error {
	p, err := d.mappedAddress(op, m.base)
	if err != nil {
		return err
	}
	m.mapped, m.holds = p, new(atomic.Int64)
	d.table.add(m)
	if m.mapped != m.base {
		d.table.add(memory{base: m.mapped, bytes: m.bytes, kind: alias, holds: m.holds})
	}
	return nil
}

// mappedAddress returns the address of pinned memory for kernels.
func (d *Device) mappedAddress(op string, host uint64) (uint64, error) {
	var p C.uint64_t
	err := d.check(op, 0, C.cistern_host_pointer(d.c, C.uint64_t(host), &p))
	return uint64(p), err
}

// takeHost removes the host memory that begins at b from the table.
func (d *Device) takeHost(b []byte, k kind) (m memory, ok, held bool) {
	if cap(b) == 0 {
		return memory{}, false, false
	}
	if m, ok, held = d.table.take(address(b), k); ok && m.mapped != m.base {
		d.table.take(m.mapped, alias)
	}
	return m, ok, held
}

func (d *Device) FreePinned(b []byte) error {
	if err := d.enter("FreePinned"); err != nil {
		return err
	}
	defer d.gate.Leave()
	m, ok, held := d.takeHost(b, pinned)
	if held {
		return d.self.Held("FreePinned", int64(m.bytes))
	}
	if !ok {
		return d.self.Invalid("FreePinned", int64(len(b)),
			"the slice does not begin where pinned memory does; free what AllocPinned returned, once")
	}
	return d.free(m)
}

func (d *Device) Register(b []byte) error {
	if err := d.enter("Register"); err != nil {
		return err
	}
	defer d.gate.Leave()
	if len(b) == 0 {
		return d.self.Invalid("Register", 0, "the slice is empty; there is nothing to pin")
	}
	m := memory{base: address(b), bytes: uint64(len(b)), kind: registered, slice: b}
	if d.table.overlaps(m.base, m.bytes) {
		return d.self.Invalid("Register", int64(len(b)), "the slice overlaps memory that is pinned or registered already")
	}
	code := C.cistern_host_register(d.c, C.uint64_t(m.base), C.size_t(m.bytes))
	if code == codeAlreadyPinned {
		return d.self.Invalid("Register", int64(len(b)), "the slice shares a page with memory that is registered already; "+
			"register slices that begin and end at pages, or one slice around both")
	}
	if err := d.check("Register", int64(len(b)), code); err != nil {
		return err
	}
	if err := d.addHost("Register", m); err != nil {
		C.cistern_host_unregister(d.c, C.uint64_t(m.base))
		return err
	}
	return nil
}

func (d *Device) Unregister(b []byte) error {
	if err := d.enter("Unregister"); err != nil {
		return err
	}
	defer d.gate.Leave()
	m, ok, held := d.takeHost(b, registered)
	if held {
		return d.self.Held("Unregister", int64(m.bytes))
	}
	if !ok {
		return d.self.Invalid("Unregister", int64(len(b)), "the slice does not begin where a registered one does")
	}
	return d.free(m)
}

func (d *Device) MappedPtr(b []byte) (device.Ptr, error) {
	if err := d.enter("MappedPtr"); err != nil {
		return 0, err
	}
	defer d.gate.Leave()
	if len(b) == 0 {
		return 0, d.self.Invalid("MappedPtr", 0, "the slice is empty; it has no address")
	}
	m, why, ok := d.table.find(address(b), uint64(len(b)), true)
	if ok {
		return device.Ptr(m.forKernels(address(b))), nil
	}
	// Pinned memory of another device may have another address here.
	if err := d.named("MappedPtr", address(b), int64(len(b)), true); why.Live || err != nil {
		return 0, d.unnamed("MappedPtr", why, address(b), int64(len(b)), true)
	}
	p, err := d.mappedAddress("MappedPtr", address(b))
	return device.Ptr(p), err
}
