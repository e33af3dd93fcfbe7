//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"errors"
	"slices"
	"sync"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
)

// virtual holds the reserved address space. The driver can unmap only the whole range of one map
// call, so each mapping is a separate range of the table, with its reservation. mu is held during
// the driver's calls that map, which are rare, but not while an Unmap waits for the device.
type virtual struct {
	mu       sync.Mutex // guards the reservations and the mappings in them
	reserved map[uint64]*reservation
	peers    []C.int // devices that may access mapped memory
}

// reservation is a range of addresses.
type reservation struct{ bytes uint64 }

func (v *virtual) init() { v.reserved = make(map[uint64]*reservation) }

func (v *virtual) addPeer(ordinal int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if !slices.Contains(v.peers, C.int(ordinal)) {
		v.peers = append(v.peers, C.int(ordinal))
	}
}

func (d *Device) Granularity() int64 { return d.unit }

func (d *Device) Reserve(bytes int64) (device.Ptr, error) {
	if err := d.enter("Reserve"); err != nil {
		return 0, err
	}
	defer d.gate.Leave()
	if err := d.self.CheckUnits("Reserve", 0, bytes, d.unit); err != nil {
		return 0, err
	}
	var p C.uint64_t
	code := C.int(device.CodeOutOfMemory)
	if bytes <= maxHost {
		code = C.cistern_reserve(d.c, C.size_t(bytes), &p)
	}
	if code == device.CodeOutOfMemory {
		return 0, &device.Error{Op: "Reserve", Device: d.name, Bytes: bytes, Code: device.CodeOutOfMemory,
			Err: device.ErrOutOfMemory, Detail: "the device has too little address space"}
	}
	if err := d.check("Reserve", bytes, code); err != nil {
		return 0, err
	}
	if err := d.hasAddress("Reserve", bytes, uint64(p)); err != nil {
		return 0, err
	}
	d.virtual.mu.Lock()
	defer d.virtual.mu.Unlock()
	r := &reservation{uint64(bytes)}
	d.virtual.reserved[uint64(p)] = r
	d.opened.Add(opened.Reservation, unsafe.Pointer(r))
	return device.Ptr(p), nil
}

func (d *Device) Unreserve(p device.Ptr) error {
	if err := d.enter("Unreserve"); err != nil {
		return err
	}
	defer d.gate.Leave()
	v := &d.virtual
	v.mu.Lock()
	defer v.mu.Unlock()
	r, ok := v.reserved[uint64(p)]
	if !ok {
		return d.self.Invalid("Unreserve", 0, "the address is not that of a reservation")
	}
	if used := d.mapped(uint64(p)); used > 0 {
		return d.self.Invalid("Unreserve", 0, "%d bytes are mapped in the reservation; unmap them first", used)
	}
	delete(v.reserved, uint64(p))
	d.opened.Remove(unsafe.Pointer(r))
	return d.unreserve(uint64(p), r)
}

func (d *Device) unreserve(p uint64, r *reservation) error {
	return d.check("Unreserve", int64(r.bytes), C.cistern_unreserve(d.c, C.uint64_t(p), C.size_t(r.bytes)))
}

// mapped returns the number of bytes mapped in a reservation.
func (d *Device) mapped(home uint64) (sum uint64) {
	for _, m := range d.table.load() {
		if m.kind == mapping && m.home == home {
			sum += m.bytes
		}
	}
	return sum
}

func (d *Device) Map(p device.Ptr, bytes int64) error {
	if err := d.enter("Map"); err != nil {
		return err
	}
	defer d.gate.Leave()
	v := &d.virtual
	v.mu.Lock()
	defer v.mu.Unlock()
	home, err := d.home("Map", uint64(p), bytes)
	if err != nil {
		return err
	}
	for _, m := range d.table.load() {
		if m.kind == mapping && m.base < uint64(p)+uint64(bytes) && uint64(p) < m.base+m.bytes {
			return d.self.Invalid("Map", bytes, "part of the range is mapped already")
		}
	}
	var peers *C.int
	if len(v.peers) > 0 {
		peers = &v.peers[0]
	}
	code := C.cistern_map(d.c, C.int(d.ordinal), C.uint64_t(p), C.size_t(bytes), peers, C.int(len(v.peers)))
	if code == device.CodeOutOfMemory {
		return d.outOfMemory("Map", bytes)
	}
	if err := d.check("Map", bytes, code); err != nil {
		return err
	}
	d.table.add(memory{base: uint64(p), bytes: uint64(bytes), kind: mapping, home: home})
	return nil
}

func (d *Device) Unmap(p device.Ptr, bytes int64) error {
	if err := d.enter("Unmap"); err != nil {
		return err
	}
	defer d.gate.Leave()
	d.virtual.mu.Lock()
	parts, err := d.wholeMappings(uint64(p), bytes)
	if err == nil {
		err = d.takeMappings(parts, bytes)
	}
	d.virtual.mu.Unlock()
	if err != nil {
		return err
	}
	errs := make([]error, len(parts))
	for i, m := range parts {
		errs[i] = d.free(m)
	}
	return errors.Join(errs...)
}

// takeMappings removes all parts from the table, or none if a graph holds one. The caller holds
// d.virtual.mu.
func (d *Device) takeMappings(parts []memory, bytes int64) error {
	for i, m := range parts {
		if _, _, held := d.table.take(m.base, mapping); held {
			for _, taken := range parts[:i] {
				d.table.add(taken)
			}
			return d.self.Held("Unmap", bytes)
		}
	}
	return nil
}

// wholeMappings returns the mappings that tile [p, p+bytes).
func (d *Device) wholeMappings(p uint64, bytes int64) (parts []memory, err error) {
	if _, err := d.home("Unmap", p, bytes); err != nil {
		return nil, err
	}
	end := p
	for _, m := range d.table.load() {
		if m.kind == mapping && m.base == end && end < p+uint64(bytes) {
			parts, end = append(parts, m), end+m.bytes
		}
	}
	if end != p+uint64(bytes) {
		return nil, d.self.Invalid("Unmap", bytes, "the range is not made of whole mappings")
	}
	return parts, nil
}

// home returns the reservation that contains [p, p+bytes).
func (d *Device) home(op string, p uint64, bytes int64) (uint64, error) {
	if err := d.self.CheckUnits(op, 0, bytes, d.unit); err != nil {
		return 0, err
	}
	for base, r := range d.virtual.reserved {
		if p >= base && p-base < r.bytes && uint64(bytes) <= r.bytes-(p-base) && (p-base)%uint64(d.unit) == 0 {
			return base, nil
		}
	}
	return 0, d.self.Invalid(op, bytes, "the range does not lie in one reservation, at a multiple of %d bytes", d.unit)
}

// close releases all reservations.
func (v *virtual) close(d *Device) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	var errs []error
	for p, r := range v.reserved {
		if d.stuck.Load() == nil {
			errs = append(errs, d.unreserve(p, r))
		}
	}
	clear(v.reserved)
	return errors.Join(errs...)
}
