//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

func (d *Device) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.enter("Alloc"); err != nil {
		return 0, err
	}
	defer d.gate.Leave()
	if bytes <= 0 {
		return 0, d.self.BadSize("Alloc", bytes)
	}
	if bytes > d.props.TotalMemory {
		return 0, d.outOfMemory("Alloc", bytes)
	}
	var p C.uint64_t
	code := C.cistern_alloc(d.c, C.size_t(bytes), &p)
	if code == device.CodeOutOfMemory {
		return 0, d.outOfMemory("Alloc", bytes)
	}
	if err := d.check("Alloc", bytes, code); err != nil {
		return 0, err
	}
	if err := d.hasAddress("Alloc", bytes, uint64(p)); err != nil {
		return 0, err
	}
	d.table.add(memory{base: uint64(p), bytes: uint64(bytes), kind: allocated})
	return device.Ptr(p), nil
}

func (d *Device) Free(p device.Ptr) error {
	if err := d.enter("Free"); err != nil {
		return err
	}
	defer d.gate.Leave()
	m, ok, held := d.table.take(uint64(p), allocated)
	if held {
		return d.self.Held("Free", int64(m.bytes))
	}
	if !ok {
		return d.self.Invalid("Free", 0, "the address is not, or no longer, that of an allocation; free what Alloc returned, once")
	}
	return d.free(m)
}

// free frees memory of the table after waiting for everything that is queued.
func (d *Device) free(m memory) error {
	if err := d.drain("Free"); err != nil {
		return err
	}
	switch m.kind {
	case allocated:
		return d.check("Free", int64(m.bytes), C.cistern_free(d.c, C.uint64_t(m.base)))
	case mapping:
		return d.check("Unmap", int64(m.bytes), C.cistern_unmap(d.c, C.uint64_t(m.base), C.size_t(m.bytes)))
	case pinned:
		return d.check("FreePinned", int64(m.bytes), C.cistern_host_free(d.c, C.uint64_t(m.base)))
	case registered:
		return d.check("Unregister", int64(m.bytes), C.cistern_host_unregister(d.c, C.uint64_t(m.base)))
	}
	return nil
}

func (d *Device) MemInfo() (free, total int64, err error) {
	if err := d.enter("MemInfo"); err != nil {
		return 0, 0, err
	}
	defer d.gate.Leave()
	var f, t C.size_t
	err = d.check("MemInfo", 0, C.cistern_mem_info(d.c, &f, &t))
	return int64(f), int64(t), err
}

// errNoAddress is the error of a driver that reports success but returns no memory.
var errNoAddress = errors.New("the driver returned the address 0 without an error")

// hasAddress returns an error if the driver's address p is 0.
func (d *Device) hasAddress(op string, bytes int64, p uint64) error {
	if p != 0 {
		return nil
	}
	return &device.Error{Op: op, Device: d.name, Bytes: bytes, Err: errNoAddress}
}

// outOfMemory returns the error with the free and total memory, or without them if the driver does
// not report them.
func (d *Device) outOfMemory(op string, bytes int64) error {
	var free, total C.size_t
	if C.cistern_mem_info(d.c, &free, &total) != codeSuccess {
		return &device.Error{Op: op, Device: d.name, Bytes: bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
	}
	return d.self.OutOfMemory(op, bytes, int64(free), int64(total))
}

// leftover frees memory that is still live, and reports it.
func (d *Device) leftover() error {
	var left backend.Leftover
	var errs []error
	for _, m := range d.table.load() {
		kinds := [alias]*backend.Held{allocated: &left.Allocations, mapping: &left.Mappings, pinned: &left.Pinned,
			registered: &left.Registered}
		if m.kind != alias {
			kinds[m.kind].Add(int64(m.bytes))
			if d.stuck.Load() == nil {
				errs = append(errs, d.free(m))
			}
		}
	}
	d.table.all.Store(nil)
	return errors.Join(append(errs, d.self.Left(&left), d.virtual.close(d))...)
}
