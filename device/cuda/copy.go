//go:build cuda

package cuda

// #include "shim.h"
import "C"

import "github.com/cistern-ml/cistern/device"

func (s *stream) CopyH2D(dst device.Ptr, src []byte) error {
	if err := s.enter("CopyH2D"); err != nil {
		return err
	}
	defer s.leaveQueued()
	n := int64(len(src))
	if err := s.copyable("CopyH2D", uint64(dst), address(src), n, false, true); err != nil || n == 0 {
		return err
	}
	return s.dev.check("CopyH2D", n,
		C.cistern_h2d(s.dev.c, s.handle, C.uint64_t(dst), C.uint64_t(address(src)), C.size_t(n)))
}

func (s *stream) CopyD2H(dst []byte, src device.Ptr) error {
	if err := s.enter("CopyD2H"); err != nil {
		return err
	}
	defer s.leaveQueued()
	n := int64(len(dst))
	if err := s.copyable("CopyD2H", address(dst), uint64(src), n, true, false); err != nil || n == 0 {
		return err
	}
	return s.dev.check("CopyD2H", n,
		C.cistern_d2h(s.dev.c, s.handle, C.uint64_t(address(dst)), C.uint64_t(src), C.size_t(n)))
}

func (s *stream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	if err := s.enter("CopyD2D"); err != nil {
		return err
	}
	defer s.leaveQueued()
	if err := s.dev.self.CheckApart(dst, src, bytes); err != nil {
		return err
	}
	if err := s.copyable("CopyD2D", uint64(dst), uint64(src), bytes, false, false); err != nil || bytes == 0 {
		return err
	}
	return s.dev.check("CopyD2D", bytes,
		C.cistern_d2d(s.dev.c, s.handle, C.uint64_t(dst), C.uint64_t(src), C.size_t(bytes)))
}

// copyable checks both ranges of a copy. toHost and fromHost mark the side that must be pinned.
func (s *stream) copyable(op string, to, from uint64, bytes int64, toHost, fromHost bool) error {
	if err := s.named(op, from, bytes, fromHost); err != nil {
		return err
	}
	return s.named(op, to, bytes, toHost)
}

func (s *stream) Memset(dst device.Ptr, value byte, bytes int64) error {
	if err := s.enter("Memset"); err != nil {
		return err
	}
	defer s.leaveQueued()
	if err := s.named("Memset", uint64(dst), bytes, false); err != nil || bytes == 0 {
		return err
	}
	return s.dev.check("Memset", bytes,
		C.cistern_memset(s.dev.c, s.handle, C.uint64_t(dst), C.uchar(value), C.size_t(bytes)))
}
