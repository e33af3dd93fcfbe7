package null

import (
	"context"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
)

// granularity is the unit of reservations and mappings, the same as on NVIDIA GPUs.
const granularity = 2 << 20

// maxReserved limits one reservation, because there are no more addresses.
const maxReserved = 1 << 62

// Granularity returns 2 MiB.
func (d *Device) Granularity() int64 { return granularity }

// Reserve reserves addresses that the script chooses or, without a choice, the next new ones.
func (d *Device) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.units("Reserve", 0, bytes); err != nil {
		return 0, err
	}
	if bytes > maxReserved {
		return 0, d.outOfMemory("Reserve", bytes, 0)
	}
	c, err := d.do(Call{Op: OpReserve, Bytes: bytes}, func(c *Call) error {
		if err := d.place(c, granularity); err != nil {
			return err
		}
		r := &span{ptr: c.Ptr, bytes: bytes}
		d.memory.reservations = insert(d.memory.reservations, r)
		d.opened.Add(opened.Reservation, unsafe.Pointer(r))
		return nil
	})
	if err != nil {
		return 0, err
	}
	return c.Ptr, nil
}

// Unreserve frees a reservation. Nothing may be mapped in it.
func (d *Device) Unreserve(p device.Ptr) error {
	if err := d.usable("Unreserve"); err != nil {
		return err
	}
	d.mu.Lock()
	r := at(d.memory.reservations, p)
	d.mu.Unlock()
	if r == nil {
		return d.refuse("Unreserve", self.Invalid("Unreserve", 0, "the address is not, or no longer, that of a reservation"))
	}
	_, err := d.do(Call{Op: OpUnreserve, Ptr: p, Bytes: r.bytes}, func(*Call) error {
		if !vacant(d.memory.spans, r.ptr, r.bytes) {
			return self.Invalid("Unreserve", 0, "a part of the reservation is still mapped; Unmap it first")
		}
		if at(d.memory.reservations, p) != r {
			return self.Invalid("Unreserve", 0, "the address is no longer that of a reservation")
		}
		d.memory.reservations = remove(d.memory.reservations, r)
		d.opened.Remove(unsafe.Pointer(r))
		return nil
	})
	return err
}

// Map counts the range of a reservation against the capacity.
func (d *Device) Map(p device.Ptr, bytes int64) error {
	if err := d.units("Map", p, bytes); err != nil {
		return err
	}
	_, err := d.do(Call{Op: OpMap, Ptr: p, Bytes: bytes}, func(*Call) error {
		i := find(d.memory.reservations, p)
		if i == len(d.memory.reservations) || !d.memory.reservations[i].holds(p, bytes) {
			return self.Invalid("Map", bytes, "the range of %d bytes is not inside one reservation", bytes)
		}
		if !vacant(d.memory.spans, p, bytes) {
			return self.Invalid("Map", bytes, "part of the range of %d bytes is mapped already", bytes)
		}
		if free := d.capacity - d.used; bytes > free {
			return d.outOfMemory("Map", bytes, free)
		}
		s := &span{ptr: p, bytes: bytes, kind: mapped, home: d.memory.reservations[i].ptr}
		d.memory.spans = insert(d.memory.spans, s)
		d.record(s)
		d.used += bytes
		return nil
	})
	return err
}

// Unmap undoes whole mappings, after waiting for the queued operations that name them.
func (d *Device) Unmap(p device.Ptr, bytes int64) error {
	if err := d.units("Unmap", p, bytes); err != nil {
		return err
	}
	d.mu.Lock()
	list := d.memory.mappings(p, bytes)
	for _, s := range list {
		s.dying = true
	}
	d.mu.Unlock()
	if list == nil {
		return d.refuse("Unmap", self.Invalid("Unmap", bytes, "the range of %d bytes is not made of whole mappings", bytes))
	}
	for _, s := range list {
		_ = d.wait(context.Background(), func() bool { return s.uses == 0 })
	}
	_, err := d.do(Call{Op: OpUnmap, Ptr: p, Bytes: bytes}, func(*Call) error {
		for _, s := range list {
			d.memory.spans = remove(d.memory.spans, s)
			d.opened.Remove(unsafe.Pointer(s))
		}
		d.used -= bytes
		return nil
	})
	if err != nil {
		d.mu.Lock()
		for _, s := range list {
			s.dying = false
		}
		d.mu.Unlock()
	}
	return err
}

// mappings returns the mappings that make up [p, p+bytes), or nil if they don't match it exactly.
func (t *table) mappings(p device.Ptr, bytes int64) []*span {
	var list []*span
	to := p + device.Ptr(bytes)
	for i := find(t.spans, p); p < to; i++ {
		if i == len(t.spans) {
			return nil
		}
		s := t.spans[i]
		if s.ptr != p || s.kind != mapped || s.dying || s.end() > to || len(list) > 0 && s.home != list[0].home {
			return nil
		}
		list = append(list, s)
		p = s.end()
	}
	return list
}

// holds reports whether [p, p+bytes) is inside s.
func (s *span) holds(p device.Ptr, bytes int64) bool {
	return p >= s.ptr && p < s.end() && bytes <= int64(s.end()-p)
}

func (d *Device) units(op string, p device.Ptr, bytes int64) error {
	if err := d.usable(op); err != nil {
		return err
	}
	return self.CheckUnits(op, p, bytes, granularity)
}
