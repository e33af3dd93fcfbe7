package host

import (
	"github.com/cistern-ml/cistern/device"
)

func (s *stream) CopyH2D(dst device.Ptr, src []byte) error {
	n := int64(len(src))
	return s.copy("CopyH2D", transfer{to: inProcess(dst), from: address(src), bytes: n, fromHost: true})
}

func (s *stream) CopyD2H(dst []byte, src device.Ptr) error {
	n := int64(len(dst))
	return s.copy("CopyD2H", transfer{to: address(dst), from: inProcess(src), bytes: n, toHost: true})
}

func (s *stream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	if err := self.CheckApart(dst, src, bytes); err != nil {
		return err
	}
	return s.copy("CopyD2D", transfer{to: inProcess(dst), from: inProcess(src), bytes: bytes})
}

func (s *stream) CopyH2DBatch(dst []device.Ptr, src [][]byte) error {
	if err := self.CheckPairs("CopyH2DBatch", len(dst), len(src)); err != nil {
		return err
	}
	all := make([]transfer, len(src))
	for i, b := range src {
		all[i] = transfer{to: inProcess(dst[i]), from: address(b), bytes: int64(len(b)), fromHost: true}
	}
	return s.copy("CopyH2DBatch", all...)
}

func (s *stream) CopyD2HBatch(dst [][]byte, src []device.Ptr) error {
	if err := self.CheckPairs("CopyD2HBatch", len(dst), len(src)); err != nil {
		return err
	}
	all := make([]transfer, len(dst))
	for i, b := range dst {
		all[i] = transfer{to: address(b), from: inProcess(src[i]), bytes: int64(len(b)), toHost: true}
	}
	return s.copy("CopyD2HBatch", all...)
}

// transfer is one range of a copy.
type transfer struct {
	to, from         uintptr
	bytes            int64
	toHost, fromHost bool // that side must be pinned
}

func (s *stream) copy(op string, all ...transfer) error {
	if err := s.usable(op); err != nil {
		return err
	}
	o := s.member.newOp(&s.queue, opCopy)
	for _, t := range all {
		err := s.dev.name(op, &o.uses, t.from, t.bytes, false, t.fromHost)
		if err == nil {
			err = s.dev.name(op, &o.uses, t.to, t.bytes, true, t.toHost)
		}
		if err != nil {
			return s.abandon(o, err)
		}
	}
	if o.uses.n == 0 {
		return s.abandon(o, nil)
	}
	return s.pushCopy(op, o)
}

// pushCopy queues a copy. If Fail has selected this copy, it queues the failure instead.
func (s *stream) pushCopy(name string, o *op) error {
	if s.dev.fails(FaultCopy) {
		o.fault = &device.Error{Op: name, Device: "host", Code: device.CodeIllegalAddress,
			Detail: "illegal address, on demand", Err: device.ErrSticky}
	}
	return s.push(name, o)
}

// abandon releases an operation that is not queued, and returns err.
func (s *stream) abandon(o *op, err error) error {
	o.uses.drop()
	if o.uses.capture != nil {
		return self.InCapture(err)
	}
	o.clear()
	s.queue.giveBack(o)
	return err
}

func (s *stream) Memset(dst device.Ptr, value byte, bytes int64) error {
	if err := s.usable("Memset"); err != nil {
		return err
	}
	o := s.member.newOp(&s.queue, opMemset)
	if err := s.dev.name("Memset", &o.uses, inProcess(dst), bytes, true, false); err != nil || bytes == 0 {
		return s.abandon(o, err)
	}
	o.value = value
	return s.push("Memset", o)
}
