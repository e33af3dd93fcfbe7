package null

import (
	"github.com/cistern-ml/cistern/device"
)

// CopyH2D is accepted if src is pinned and dst live, and copies nothing.
func (s *Stream) CopyH2D(dst device.Ptr, src []byte) error {
	return s.data("CopyH2D", src, device.Range{Ptr: dst, Bytes: int64(len(src))})
}

// CopyD2H is accepted if dst is pinned and src live, and copies nothing.
func (s *Stream) CopyD2H(dst []byte, src device.Ptr) error {
	return s.data("CopyD2H", dst, device.Range{Ptr: src, Bytes: int64(len(dst))})
}

// CopyD2D is accepted if both ranges are live and don't overlap, and copies nothing.
func (s *Stream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	if err := s.usable("CopyD2D"); err != nil {
		return err
	}
	if bytes > 0 && dst < src+device.Ptr(bytes) && src < dst+device.Ptr(bytes) {
		return invalid("CopyD2D", bytes, "the ranges of %d bytes overlap", bytes)
	}
	return s.data("CopyD2D", nil, device.Range{Ptr: dst, Bytes: bytes}, device.Range{Ptr: src, Bytes: bytes})
}

// Copy2D is accepted if its ranges are live and pinned, and copies nothing.
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

// Memset is accepted if the range is live, and sets nothing.
func (s *Stream) Memset(dst device.Ptr, _ byte, bytes int64) error {
	return s.data("Memset", nil, device.Range{Ptr: dst, Bytes: bytes})
}

// Launch is accepted if its ranges are live, and runs nothing: neither Func nor Kernel.
func (s *Stream) Launch(l *device.Launch) error {
	if err := s.usable("Launch"); err != nil {
		return err
	}
	if l == nil || l.Func == nil && l.Kernel == nil {
		return invalid("Launch", 0, "there is nothing to launch; give a Func or a Kernel")
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
	for _, r := range ranges {
		uses, ok := d.name(o.uses, r)
		if !ok {
			return invalid(name, r.Bytes, "the range of %d bytes is not inside one live allocation", r.Bytes)
		}
		o.uses = uses
	}
	if len(host) > 0 {
		u := inside(d.host.spans, address(host), int64(len(host)))
		if u == nil {
			return &device.Error{Op: name, Device: "null", Bytes: int64(len(host)), Code: device.CodeInvalidValue,
				Detail: "allocate it with AllocPinned, or Register it", Err: device.ErrNotPinned}
		}
		o.uses = append(o.uses, u)
	}
	s.push(o)
	return nil
}

// name adds what r lies in to uses: an allocation, adjacent mappings of one reservation, or mapped host memory. mu is
// held.
func (d *Device) name(uses []*span, r device.Range) ([]*span, bool) {
	if r.Bytes == 0 {
		return uses, true
	}
	if r.Bytes < 0 || r.Ptr+device.Ptr(r.Bytes) < r.Ptr {
		return nil, false
	}
	if u := inside(d.host.spans, r.Ptr, r.Bytes); u != nil {
		return append(uses, u), true
	}
	list := d.memory.spans
	for i, p := find(list, r.Ptr), r.Ptr; ; i++ {
		if i == len(list) || list[i].ptr > p || list[i].dying || p > r.Ptr && list[i].home != list[i-1].home {
			return nil, false
		}
		u := list[i]
		uses = append(uses, u)
		if r.Ptr+device.Ptr(r.Bytes) <= u.end() {
			return uses, true
		}
		if u.kind != mapped {
			return nil, false
		}
		p = u.end()
	}
}

// inside is the live range in list that [p, p+bytes) lies in, or nil.
func inside(list []*span, p device.Ptr, bytes int64) *span {
	if i := find(list, p); i < len(list) && list[i].holds(p, bytes) && !list[i].dying {
		return list[i]
	}
	return nil
}
