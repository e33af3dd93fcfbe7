package host

import (
	"github.com/cistern-ml/cistern/device"
)

// granularity is the unit of reservations and mappings, the same as on NVIDIA GPUs.
const granularity = 2 << 20

// Granularity returns 2 MiB.
func (d *Device) Granularity() int64 { return granularity }

// Reserve reserves address space in Go memory, where fresh pages cost nothing until they are
// accessed. If the Go heap has used the pages before, it clears them first. All reservations
// together are at most 9/8 of the capacity.
func (d *Device) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.usable("Reserve"); err != nil {
		return 0, err
	}
	if err := self.CheckUnits("Reserve", 0, bytes, granularity); err != nil {
		return 0, err
	}
	if free, ok := d.mem.charge(&d.mem.reserved, d.mem.reservable, bytes); !ok {
		return 0, self.OutOfMemory("Reserve", bytes, free, d.mem.reservable)
	}
	data := d.mem.memory(bytes, granularity)
	r := &reservation{base: address(data) + d.mem.apart, data: data}
	if !d.mem.reserve(r) {
		return 0, self.Closed("Reserve")
	}
	return device.Ptr(r.base), nil
}

// Unreserve frees a reservation. Nothing may be mapped in it.
func (d *Device) Unreserve(p device.Ptr) error {
	if err := d.usable("Unreserve"); err != nil {
		return err
	}
	found, mapped := d.mem.unreserve(inProcess(p))
	switch {
	case !found:
		return d.refuse("Unreserve", self.Invalid("Unreserve", 0, "the address is not, or no longer, that of a reservation"))
	case mapped > 0:
		return self.Invalid("Unreserve", 0, "%d bytes of the reservation are still mapped; Unmap them first", mapped)
	}
	return nil
}

// Map backs a range of a reservation. It counts against the capacity.
func (d *Device) Map(p device.Ptr, bytes int64) error {
	if err := d.usable("Map"); err != nil {
		return err
	}
	if err := self.CheckUnits("Map", p, bytes, granularity); err != nil {
		return err
	}
	free, ok := d.mem.charge(&d.mem.used, d.mem.capacity, bytes)
	if !ok {
		return self.OutOfMemory("Map", bytes, free, d.mem.capacity)
	}
	found, ok := d.mem.mapRange(inProcess(p), bytes)
	if ok && d.fails(FaultMap) {
		d.mem.unmapRange(inProcess(p), bytes)
		return self.OutOfMemory("Map", bytes, free, d.mem.capacity)
	}
	if ok {
		return nil
	}
	d.mem.refund(&d.mem.used, d.mem.capacity, bytes)
	if !found {
		return d.refuse("Map", self.Invalid("Map", bytes, "the range of %d bytes is not inside one reservation", bytes))
	}
	return d.refuse("Map", self.Invalid("Map", bytes, "part of the range of %d bytes is mapped already", bytes))
}

// Unmap unmaps whole mappings, after waiting for the queued operations that name them.
func (d *Device) Unmap(p device.Ptr, bytes int64) error {
	if err := d.usable("Unmap"); err != nil {
		return err
	}
	if err := self.CheckUnits("Unmap", p, bytes, granularity); err != nil {
		return err
	}
	d.catchUp()
	whole, held := d.mem.unmapRange(inProcess(p), bytes)
	if held && whole {
		return self.Held("Unmap", bytes)
	}
	if !whole {
		return d.refuse("Unmap", self.Invalid("Unmap", bytes, "the range of %d bytes is not made of whole mappings", bytes))
	}
	return nil
}
