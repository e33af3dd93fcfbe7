package null

import (
	"context"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// alignment is the alignment in bytes of addresses that the device chooses.
const alignment = 512

// Alloc returns an address that the script chooses or, without a choice, the next new one.
func (d *Device) Alloc(bytes int64) (device.Ptr, error) {
	if err := d.usable("Alloc"); err != nil {
		return 0, err
	}
	if bytes <= 0 {
		return 0, self.BadSize("Alloc", bytes)
	}
	c, err := d.do(Call{Op: OpAlloc, Bytes: bytes}, func(c *Call) error {
		if free := d.capacity - d.used; bytes > free {
			return d.outOfMemory("Alloc", bytes, free)
		}
		if err := d.place(c, alignment); err != nil {
			return err
		}
		s := &span{ptr: c.Ptr, bytes: bytes, kind: allocated}
		d.memory.spans = insert(d.memory.spans, s)
		d.record(s)
		d.used += bytes
		return nil
	})
	if err != nil {
		return 0, err
	}
	return c.Ptr, nil
}

// place checks the address that the script chose, or chooses one. The caller holds mu.
func (d *Device) place(c *Call, align device.Ptr) error {
	if c.Ptr != 0 {
		if !d.vacant(c.Ptr, c.Bytes) {
			return self.Invalid(c.Op.name(), c.Bytes, "the script chose the address %#x, which overlaps a live range", c.Ptr)
		}
		return nil
	}
	for {
		p := (d.next + align - 1) / align * align
		d.next = p + device.Ptr(c.Bytes)
		if d.next < p {
			// No addresses are left.
			return d.outOfMemory(c.Op.name(), c.Bytes, 0)
		}
		if d.vacant(p, c.Bytes) {
			c.Ptr = p
			return nil
		}
	}
}

func (d *Device) vacant(p device.Ptr, bytes int64) bool {
	return vacant(d.memory.spans, p, bytes) && vacant(d.memory.reservations, p, bytes)
}

// Vacant reports whether [p, p+bytes) overlaps no allocation, mapping or reservation, so that a
// script may choose it.
func (d *Device) Vacant(p device.Ptr, bytes int64) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.vacant(p, bytes)
}

// Free drops an allocation, after waiting for the queued operations that name it.
func (d *Device) Free(p device.Ptr) error {
	if err := d.usable("Free"); err != nil {
		return err
	}
	s, err := d.retire(&d.memory, p, allocated)
	if err != nil {
		return err
	}
	if s == nil {
		return d.refuse("Free", self.Invalid("Free", 0, "the address is not, or no longer, one from Alloc"))
	}
	_, err = d.do(Call{Op: OpFree, Ptr: p, Bytes: s.bytes}, func(*Call) error {
		d.memory.spans = remove(d.memory.spans, s)
		d.opened.Remove(unsafe.Pointer(s))
		d.used -= s.bytes
		return nil
	})
	if err != nil {
		d.mu.Lock()
		s.dying = false
		d.mu.Unlock()
	}
	return err
}

// retire finds the range of kind k at p, excludes new uses, and waits until the present ones have
// ended. It returns nil if there is no such range.
func (d *Device) retire(t *table, p device.Ptr, k kind) (*span, error) {
	d.mu.Lock()
	s := at(t.spans, p)
	if s == nil || s.kind != k || s.dying {
		d.mu.Unlock()
		return nil, nil
	}
	s.dying = true
	busy := s.uses > 0
	d.mu.Unlock()
	if !busy {
		return s, nil
	}
	return s, d.wait(context.Background(), func() bool { return s.uses == 0 })
}

// MemInfo returns the bytes that are neither allocated nor mapped, and the capacity.
func (d *Device) MemInfo() (free, total int64, err error) {
	if err := d.usable("MemInfo"); err != nil {
		return 0, 0, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.capacity - d.used, d.capacity, nil
}
