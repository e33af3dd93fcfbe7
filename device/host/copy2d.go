package host

import (
	"github.com/cistern-ml/cistern/device"
)

// Copy2D reports to the race detector the bytes of the rows, without those between them.
func (s *stream) Copy2D(c *device.Copy2D) error {
	if err := s.usable("Copy2D"); err != nil {
		return err
	}
	toBytes, fromBytes, err := c.Spans("host")
	if err != nil {
		return err
	}
	to, from := inProcess(c.Dst), inProcess(c.Src)
	if c.DstHost != nil {
		to = address(c.DstHost)
	}
	if c.SrcHost != nil {
		from = address(c.SrcHost)
	}
	o := s.member.newOp(&s.queue, opCopy2D)
	err = s.dev.name("Copy2D", &o.uses, from, fromBytes, false, c.SrcHost != nil)
	if err == nil {
		err = s.dev.name("Copy2D", &o.uses, to, toBytes, true, c.DstHost != nil)
	}
	if err != nil || o.uses.n == 0 {
		return s.abandon(o, err)
	}
	o.rows = &rows{width: c.Width, height: c.Height, toPitch: c.DstPitch, fromPitch: c.SrcPitch}
	return s.pushCopy("Copy2D", o)
}
