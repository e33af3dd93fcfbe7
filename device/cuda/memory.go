//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
)

func (d *Device) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.enter("Alloc"); err != nil {
		return 0, err
	}
	defer d.gate.leave()
	if bytes <= 0 {
		return 0, d.badSize("Alloc", bytes)
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
	defer d.gate.leave()
	m, ok := d.table.take(uint64(p), allocated)
	if !ok {
		return d.invalid("Free", 0, "the address is not, or no longer, that of an allocation; free what Alloc returned, once")
	}
	return d.free(m)
}

// free gives memory of the table back, after waiting for what is queued.
func (d *Device) free(m memory) error {
	if err := d.check("Free", int64(m.bytes), C.cistern_synchronize(d.c)); err != nil {
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
	defer d.gate.leave()
	var f, t C.size_t
	err = d.check("MemInfo", 0, C.cistern_mem_info(d.c, &f, &t))
	return int64(f), int64(t), err
}

// errNoAddress is a driver's success without memory.
var errNoAddress = errors.New("the driver gave the address 0, and no error")

// hasAddress refuses what a driver gave if that is nothing.
func (d *Device) hasAddress(op string, bytes int64, p uint64) error {
	if p != 0 {
		return nil
	}
	return &device.Error{Op: op, Device: d.name, Bytes: bytes, Err: errNoAddress}
}

func (d *Device) badSize(op string, bytes int64) error {
	return d.invalid(op, bytes, "%d bytes; the size must be positive", bytes)
}

func (d *Device) outOfMemory(op string, bytes int64) error {
	e := &device.Error{Op: op, Device: d.name, Bytes: bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
	var free, total C.size_t
	if C.cistern_mem_info(d.c, &free, &total) == codeSuccess {
		e.Detail = fmt.Sprintf("asked for %d bytes, %d of %d are free (%s of %s)", bytes, free, total,
			humanize.IBytes(uint64(free)), humanize.IBytes(uint64(total)))
	}
	return e
}

// leftover frees what nobody did, and reports it.
func (d *Device) leftover() error {
	var count [alias]int
	var sum [alias]uint64
	var errs []error
	for _, m := range d.table.load() {
		if m.kind != alias {
			count[m.kind]++
			sum[m.kind] += m.bytes
			if d.stuck.Load() == nil {
				errs = append(errs, d.free(m))
			}
		}
	}
	d.table.all.Store(nil)
	for k, what := range [alias]string{"allocated and never freed", "mapped and never unmapped",
		"of pinned memory, never freed", "registered and never unregistered"} {
		if count[k] > 0 {
			errs = append(errs, fmt.Errorf("device: Close of %s: %s in %d pieces: %s", d.name,
				humanize.IBytes(sum[k]), count[k], what))
		}
	}
	return errors.Join(append(errs, d.virtual.close(d))...)
}
