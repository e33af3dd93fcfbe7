package host

import (
	"math"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// Alloc returns the address of bytes bytes, aligned to 512. Fresh memory is zero or what its last owner left.
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

// aligned makes bytes bytes whose address is a multiple of align. Large slices begin with a page of the Go heap, 8 KiB;
// more than that would be luck, at the price of a slice for the garbage collector.
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

// inProcess is p as an address of this process. One that has too many bits for that is where nothing lies.
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

// freed frees a segment, or says that there is none with the words of missing, or that a graph uses it.
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

// MemInfo returns the free and total bytes of the device. Memory of Alloc and Map counts, to the byte; pinned
// memory does not.
func (d *Device) MemInfo() (free, total int64, err error) {
	if err := d.usable("MemInfo"); err != nil {
		return 0, 0, err
	}
	return d.mem.available(), d.mem.capacity, nil
}

// Bytes is the memory at [p, p+bytes), which must lie in one live allocation, in adjacent mappings of one
// reservation, or in pinned or registered memory. No bytes are nil. Kernels may call it, also while the device
// closes, or while a Free or Unmap of the memory waits for them. It also finds the memory of a device
// that is not accessible, for its kernels.
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

// nameLaunch adds the ranges of a kernel to u, or says what is wrong with one of them.
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

// name adds a range to u, or says what is wrong with it. An empty range is not added.
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
