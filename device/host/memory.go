package host

import (
	"math"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// Alloc returns the address of bytes bytes, aligned to 512. Fresh memory is zero or has old
// contents.
func (d *Device) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.usable("Alloc"); err != nil {
		return 0, err
	}
	if bytes <= 0 {
		return 0, self.BadSize("Alloc", bytes)
	}
	if free, ok := d.mem.charge(&d.mem.used, d.mem.capacity, bytes); !ok {
		return 0, self.OutOfMemory("Alloc", bytes, free, d.mem.capacity)
	}
	if d.fails(FaultAlloc) {
		return 0, self.OutOfMemory("Alloc", bytes, d.mem.refund(&d.mem.used, d.mem.capacity, bytes), d.mem.capacity)
	}
	s := d.mem.newSegment(allocated, d.mem.memory(bytes, alignment))
	if !d.mem.add(s) {
		d.mem.refund(&d.mem.used, d.mem.capacity, bytes)
		return 0, self.Closed("Alloc")
	}
	return device.Ptr(s.base), nil
}

// aligned returns bytes bytes at an address that is a multiple of align. Large slices start on a
// page of the Go heap, 8 KiB, so for an align up to that the first attempt usually succeeds. For a
// larger align it would be luck, and a failure costs the garbage collector a slice.
func aligned(bytes, align int64) []byte {
	if align <= 8<<10 {
		if b := make([]byte, bytes); int64(uintptr(unsafe.Pointer(&b[0])))%align == 0 {
			return b
		}
	}
	b := make([]byte, bytes+align-1)
	skip := -int64(uintptr(unsafe.Pointer(&b[0]))) & (align - 1)
	return b[skip : skip+bytes : skip+bytes]
}

// inProcess returns p as an address of this process. For a p with too many bits it returns an
// address at which nothing lies.
func inProcess(p device.Ptr) uintptr {
	if addr := uintptr(p); device.Ptr(addr) == p {
		return addr
	}
	return math.MaxUint
}

// Free frees what Alloc returned, after waiting for the queued operations that name it.
func (d *Device) Free(p device.Ptr) error {
	if err := d.usable("Free"); err != nil {
		return err
	}
	return d.freed("Free", inProcess(p), allocated, &d.mem.used,
		"the address is not, or no longer, that of an allocation; free what Alloc returned, once")
}

// freed frees a segment. If there is none it returns an error with the text missing; if a graph
// holds it, an error that says so.
func (d *Device) freed(op string, addr uintptr, k kind, account *int64, missing string) error {
	d.catchUp()
	found, held := d.mem.free(addr, k, account)
	switch {
	case held:
		return self.Held(op, 0)
	case !found:
		return d.refuse(op, self.Invalid(op, 0, "%s", missing))
	}
	return nil
}

// MemInfo returns the free and total bytes of the device. It counts memory of Alloc and Map to the
// byte, without pinned memory.
func (d *Device) MemInfo() (free, total int64, err error) {
	if err := d.usable("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.mem.available(), d.mem.capacity, nil
}

// Bytes returns the memory at [p, p+bytes), which must lie in one live allocation, in adjacent
// mappings of one reservation, or in pinned or registered memory. For 0 bytes it returns nil.
// Kernels may call it, also while the device closes, or while a Free or Unmap of the memory waits
// for them. It works on devices with inaccessible memory, too, for their kernels.
func (d *Device) Bytes(p device.Ptr, bytes int64) ([]byte, error) {
	if err := d.stuckError(); err != nil {
		return nil, err
	}
	if bytes < 0 {
		return nil, self.Negative("Bytes", bytes)
	}
	if bytes == 0 {
		return nil, nil
	}
	data, m, ok := d.mem.bytes(inProcess(p), bytes)
	if ok {
		return data, nil
	}
	return nil, d.refuse("Bytes", self.Missed("Bytes", m, uint64(inProcess(p)), bytes, false))
}

// nameLaunch adds the ranges of a kernel to u, or returns an error for the first invalid one.
func (d *Device) nameLaunch(u *uses, l *device.Launch) error {
	wrong, m := d.mem.nameLaunch(u, l)
	switch {
	case wrong == nil:
		return nil
	case wrong.Bytes < 0:
		return self.Negative("Launch", wrong.Bytes)
	}
	return d.refuse("Launch", self.Missed("Launch", m, uint64(inProcess(wrong.Ptr)), wrong.Bytes, false))
}

// name adds a range to u, or returns an error if it is invalid. Empty ranges are not added.
func (d *Device) name(op string, u *uses, addr uintptr, bytes int64, write, onHost bool) error {
	if bytes < 0 {
		return self.Negative(op, bytes)
	}
	if bytes == 0 {
		return nil
	}
	m, ok := d.mem.name(u, addr, bytes, write, onHost)
	if ok {
		return nil
	}
	return d.refuse(op, self.Missed(op, m, uint64(addr), bytes, onHost))
}
