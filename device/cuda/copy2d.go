//go:build cuda

package cuda

// #include "shim.h"
import "C"

import "github.com/cistern-ml/cistern/device"

// maxPitch is the limit of GPUs (CU_DEVICE_ATTRIBUTE_MAX_PITCH).
const maxPitch = 1<<31 - 1

// Copy2D accepts pitches of up to 2,147,483,647 bytes. Rows without gaps are copied by an ordinary
// copy, without that limit.
func (s *stream) Copy2D(c *device.Copy2D) error {
	if err := s.enter("Copy2D"); err != nil {
		return err
	}
	defer s.leaveQueued()
	d := s.dev
	toBytes, fromBytes, err := c.Spans(d.name)
	if err != nil {
		return err
	}
	to, from := uint64(c.Dst), uint64(c.Src)
	if c.DstHost != nil {
		to = address(c.DstHost)
	}
	if c.SrcHost != nil {
		from = address(c.SrcHost)
	}
	if err := s.named("Copy2D", from, fromBytes, c.SrcHost != nil); err != nil {
		return err
	}
	if err := s.named("Copy2D", to, toBytes, c.DstHost != nil); err != nil || toBytes == 0 {
		return err
	}
	bytes := c.Width * c.Height
	if toBytes == bytes && fromBytes == bytes {
		return d.check("Copy2D", bytes, C.cistern_d2d(d.c, s.handle, C.uint64_t(to), C.uint64_t(from), C.size_t(bytes)))
	}
	if pitch := max(c.DstPitch, c.SrcPitch); pitch > maxPitch {
		return d.self.Invalid("Copy2D", bytes, "the pitch is %d bytes; a GPU copies rows that are at most %d bytes apart", pitch, maxPitch)
	}
	return d.check("Copy2D", bytes, C.cistern_copy_2d(d.c, s.handle, &C.cistern_rows{
		to: C.uint64_t(to), from: C.uint64_t(from), to_host: C.bool(c.DstHost != nil), from_host: C.bool(c.SrcHost != nil),
		to_pitch: C.size_t(c.DstPitch), from_pitch: C.size_t(c.SrcPitch), width: C.size_t(c.Width), height: C.size_t(c.Height)}))
}
