package null

import (
	"math"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// maxPinned limits one piece of pinned memory, because it is real memory.
const maxPinned = min(1<<36, math.MaxInt/2)

// AllocPinned returns ordinary Go memory, which copies accept.
func (d *Device) AllocPinned(bytes int64) ([]byte, error) {
	if err := d.usable("AllocPinned"); err != nil {
		return nil, err
	}
	if bytes <= 0 {
		return nil, self.BadSize("AllocPinned", bytes)
	}
	if bytes > maxPinned {
		return nil, d.outOfMemory("AllocPinned", bytes, maxPinned)
	}
	b := make([]byte, bytes)
	if err := d.pin("AllocPinned", b, pinned); err != nil {
		return nil, err
	}
	return b, nil
}

// FreePinned drops memory from AllocPinned, after waiting for the queued operations that name it.
func (d *Device) FreePinned(b []byte) error {
	if err := d.usable("FreePinned"); err != nil {
		return err
	}
	if !d.takePortable(address(b)) {
		return d.notThere("FreePinned")
	}
	return nil
}

// Register makes copies accept b.
func (d *Device) Register(b []byte) error {
	if err := d.usable("Register"); err != nil {
		return err
	}
	if len(b) == 0 {
		return self.Invalid("Register", 0, "the slice is empty")
	}
	return d.pin("Register", b, registered)
}

// MappedPtr returns the address of b's first byte.
func (d *Device) MappedPtr(b []byte) (device.Ptr, error) {
	if err := d.usable("MappedPtr"); err != nil {
		return 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	u := d.hostMemory(address(b), int64(len(b)))
	if u != nil && u.kind == pinned {
		u.letGo()
	}
	if len(b) > 0 && u != nil {
		return address(b), nil
	}
	return 0, d.refuse("MappedPtr", self.Invalid("MappedPtr", int64(len(b)), "the slice is not inside pinned or registered memory"))
}

func (d *Device) pin(name string, b []byte, k kind) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	s := &span{ptr: address(b), bytes: int64(len(b)), kind: k, data: b, owner: d}
	if d.forgotten {
		return d.usable(name)
	}
	switch {
	case !vacant(d.host.spans, s.ptr, s.bytes):
	case k == pinned && addPortable(s):
		d.record(s)
		return nil
	case k == registered && vacantPortable(s):
		d.host.spans = insert(d.host.spans, s)
		d.record(s)
		return nil
	}
	return self.Invalid(name, s.bytes, "the slice overlaps memory that is pinned or registered")
}

// Unregister undoes Register, after waiting for the queued operations that name the slice.
func (d *Device) Unregister(b []byte) error {
	if err := d.usable("Unregister"); err != nil {
		return err
	}
	s, err := d.retire(&d.host, address(b), registered)
	if err != nil {
		return err
	}
	if s == nil {
		return d.notThere("Unregister")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.host.spans = remove(d.host.spans, s)
	d.opened.Remove(unsafe.Pointer(s))
	return nil
}

// notThere returns the error of a slice that can't be freed or unregistered.
func (d *Device) notThere(name string) error {
	return d.refuse(name, self.Invalid(name, 0, "the slice does not, or no longer, begin where one of that kind began"))
}

// address returns the address of b's first byte, which is never accessed.
func address(b []byte) device.Ptr { return device.Ptr(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
