package host

import (
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// AllocPinned returns bytes bytes of Go memory that copies accept, aligned to 512. Pinned memory
// does not count as device memory. Its total is limited to the machine's RAM or, if that is larger,
// to the device's capacity.
func (d *Device) AllocPinned(bytes int64) ([]byte, error) {
	if err := d.usable("AllocPinned"); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, self.BadSize("AllocPinned", bytes)
	}
	if free, ok := d.mem.charge(&d.mem.pinnedBytes, d.mem.pinnable, bytes); !ok {
		return nil, self.OutOfMemory("AllocPinned", bytes, free, d.mem.pinnable)
	}
	if d.fails(FaultPinned) {
		free := d.mem.refund(&d.mem.pinnedBytes, d.mem.pinnable, bytes)
		return nil, self.OutOfMemory("AllocPinned", bytes, free, d.mem.pinnable)
	}
	data, err := d.mem.pinnedMemory(bytes)
	if err != nil {
		d.mem.refund(&d.mem.pinnedBytes, d.mem.pinnable, bytes)
		return nil, err
	}
	s := d.mem.newSegment(pinned, data)
	if !d.mem.add(s) {
		d.mem.refund(&d.mem.pinnedBytes, d.mem.pinnable, bytes)
		return nil, self.Closed("AllocPinned")
	}
	d.mem.share()
	return s.data, nil
}

// FreePinned frees memory from AllocPinned, after waiting for the queued operations that name it.
func (d *Device) FreePinned(b []byte) error {
	if err := d.usable("FreePinned"); err != nil {
		return err
	}
	defer d.mem.share()
	d.mem.lock()
	s := d.mem.find(address(b), pinned)
	d.mem.unlock()
	err := d.freed("FreePinned", address(b), pinned, &d.mem.pinnedBytes,
		"the slice does not, or no longer, begin where one from AllocPinned began")
	if err == nil && d.dry {
		freePages(s.data) // of two concurrent calls, one gets here
	}
	return err
}

// Register lets copies use b in place. Go memory never moves.
func (d *Device) Register(b []byte) error {
	if err := d.usable("Register"); err != nil {
		return err
	}
	if len(b) == 0 {
		return self.BadSize("Register", 0)
	}
	if !d.mem.add(d.mem.newSegment(registered, b[:len(b):len(b)])) {
		return d.refuse("Register", self.Invalid("Register", int64(len(b)),
			"the slice overlaps memory that is pinned, registered or the device's"))
	}
	return nil
}

// Unregister undoes Register, after waiting for the queued operations that name the slice.
func (d *Device) Unregister(b []byte) error {
	if err := d.usable("Unregister"); err != nil {
		return err
	}
	return d.freed("Unregister", address(b), registered, nil,
		"the slice does not, or no longer, begin where a registered one began")
}

// MappedPtr returns the address of b's first byte, because the host device uses memory in place.
func (d *Device) MappedPtr(b []byte) (device.Ptr, error) {
	if err := d.usable("MappedPtr"); err != nil {
		return 0, err
	}
	if len(b) == 0 {
		return 0, self.BadSize("MappedPtr", 0)
	}
	var u uses
	if err := d.name("MappedPtr", &u, address(b), int64(len(b)), true, true); err != nil {
		return 0, err
	}
	u.drop()
	return device.Ptr(address(b)), nil
}

// address returns the address of b's first byte.
func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
