package null

import (
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// CopyH2D requires that src is pinned and dst is live. It copies nothing.
func (s *Stream) CopyH2D(dst device.Ptr, src []byte) error {
	return s.data("CopyH2D", src, device.Range{Ptr: dst, Bytes: int64(len(src))})
}

// CopyD2H requires that dst is pinned and src is live. It copies nothing.
func (s *Stream) CopyD2H(dst []byte, src device.Ptr) error {
	return s.data("CopyD2H", dst, device.Range{Ptr: src, Bytes: int64(len(dst))})
}

// CopyD2D requires that both ranges are live and don't overlap. It copies nothing.
func (s *Stream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	if err := s.usable("CopyD2D"); err != nil {
		return err
	}
	if err := self.CheckApart(dst, src, bytes); err != nil {
		return err
	}
	return s.data("CopyD2D", nil, device.Range{Ptr: dst, Bytes: bytes}, device.Range{Ptr: src, Bytes: bytes})
}

// Copy2D requires that device ranges are live and a host range is pinned. It copies nothing.
func (s *Stream) Copy2D(c *device.Copy2D) error {
	if err := s.usable("Copy2D"); err != nil {
		return err
	}
	dst, src, err := c.Spans("null")
	if err != nil {
		return err
	}
	switch {
	case c.DstHost != nil:
		return s.data("Copy2D", c.DstHost[:dst], device.Range{Ptr: c.Src, Bytes: src})
	case c.SrcHost != nil:
		return s.data("Copy2D", c.SrcHost[:src], device.Range{Ptr: c.Dst, Bytes: dst})
	}
	return s.data("Copy2D", nil, device.Range{Ptr: c.Dst, Bytes: dst}, device.Range{Ptr: c.Src, Bytes: src})
}

// Memset requires that the range is live. It sets nothing.
func (s *Stream) Memset(dst device.Ptr, _ byte, bytes int64) error {
	return s.data("Memset", nil, device.Range{Ptr: dst, Bytes: bytes})
}

// Launch requires that its ranges are live. It runs neither Func nor Kernel.
func (s *Stream) Launch(l *device.Launch) error {
	if s.launching != nil {
		return s.launching.Launch(s, l, s.queueKernel)
	}
	return s.queueKernel(l)
}

func (s *Stream) queueKernel(l *device.Launch) error {
	if err := s.usable("Launch"); err != nil {
		return err
	}
	if l == nil || l.Func == nil && l.Kernel == nil {
		return self.Invalid("Launch", 0, "there is nothing to launch; give a Func or a Kernel")
	}
	return s.data("Launch", nil, append(append([]device.Range(nil), l.Reads...), l.Writes...)...)
}

// data queues an operation that names ranges, and pinned host memory.
func (s *Stream) data(name string, host []byte, ranges ...device.Range) error {
	if err := s.usable(name); err != nil {
		return err
	}
	d := s.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := s.shut(name); err != nil {
		return err
	}
	var o op
	refused := func(err error) error {
		for _, u := range o.uses {
			if u.kind == pinned {
				u.letGo()
			}
		}
		return err
	}
	for _, r := range ranges {
		if r.Bytes < 0 {
			return refused(self.Negative(name, r.Bytes))
		}
		uses, miss, ok := d.name(o.uses, r)
		if !ok {
			return refused(self.Missed(name, miss, uint64(r.Ptr), r.Bytes, false))
		}
		o.uses = uses
	}
	if len(host) > 0 {
		u := d.hostMemory(address(host), int64(len(host)))
		if u == nil {
			return refused(self.Missed(name, d.missedHost(address(host)), uint64(address(host)), int64(len(host)), true))
		}
		o.uses = append(o.uses, u)
	}
	s.push(o)
	return nil
}

// name adds the spans of r to uses: an allocation, adjacent mappings of one reservation, or mapped
// host memory. The caller holds mu.
func (d *Device) name(uses []*span, r device.Range) ([]*span, backend.Miss, bool) {
	if r.Bytes == 0 {
		return uses, backend.Miss{}, true
	}
	if u := inside(d.host.spans, r.Ptr, r.Bytes); u != nil {
		return append(uses, u), backend.Miss{}, true
	}
	miss := missed(d.memory.spans, r.Ptr)
	if !miss.Live {
		u := holdPortable(r.Ptr, r.Bytes)
		return append(uses, u), miss, u != nil
	}
	list := d.memory.spans
	first := find(list, r.Ptr)
	uses = append(uses, list[first])
	for i := first + 1; miss.Size-miss.Offset < r.Bytes && list[first].kind == mapped && i < len(list); i++ {
		if u, last := list[i], list[i-1]; u.dying || u.home != last.home || u.ptr != last.end() {
			break
		}
		uses = append(uses, list[i])
		miss.Size += list[i].bytes
	}
	return uses, miss, r.Bytes <= miss.Size-miss.Offset
}

// hostMemory returns the registered memory of d, or the pinned memory of any device, that contains
// [p, p+bytes), or nil. It adds a use to pinned memory. The caller holds mu.
func (d *Device) hostMemory(p device.Ptr, bytes int64) *span {
	if u := inside(d.host.spans, p, bytes); u != nil {
		return u
	}
	return holdPortable(p, bytes)
}

// missedHost is missed for host memory.
func (d *Device) missedHost(p device.Ptr) backend.Miss {
	if miss := missed(d.host.spans, p); miss.Live {
		return miss
	}
	portable.mu.Lock()
	defer portable.mu.Unlock()
	return missed(portable.spans, p)
}

// missed describes the live range of list that contains p.
func missed(list []*span, p device.Ptr) backend.Miss {
	if u := inside(list, p, 1); u != nil {
		return backend.Miss{Live: true, Offset: int64(p - u.ptr), Size: u.bytes}
	}
	return backend.Miss{}
}

// inside returns the live range in list that contains [p, p+bytes), or nil.
func inside(list []*span, p device.Ptr, bytes int64) *span {
	if i := find(list, p); i < len(list) && list[i].holds(p, bytes) && !list[i].dying {
		return list[i]
	}
	return nil
}
