//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"errors"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/cuda/internal/ptx"
)

// gathered is the size of a range, in bytes, up to which a kernel copies it together with many
// others, because the driver takes a microsecond or more for each copy. For longer ranges a
// separate copy pays, and it takes no multiprocessor.
const gathered = 64 << 10

// CopyH2DBatch copies ranges of up to 64 KiB with a kernel that reads the host's memory in place,
// up to 170 ranges in a launch, and longer ranges with the driver's copies.
func (s *stream) CopyH2DBatch(dst []device.Ptr, src [][]byte) error {
	return s.batch("CopyH2DBatch", src, dst, false, s.dev.gather)
}

// CopyD2HBatch does the same with a kernel that writes the host's memory in place.
func (s *stream) CopyD2HBatch(dst [][]byte, src []device.Ptr) error {
	return s.batch("CopyD2HBatch", dst, src, true, s.dev.gather)
}

// batch holds the ranges of a call that are not empty: small for the kernel, the others for the
// driver.
type batch struct {
	small    []C.cistern_range
	to, from []C.uint64_t
	bytes    []C.size_t
	sum      int64 // of all bytes
}

// batches are reused by later calls.
var batches = sync.Pool{New: func() any { return new(batch) }}

func (s *stream) batch(op string, host [][]byte, dev []device.Ptr, down bool, gather C.uint64_t) error {
	if err := s.enter(op); err != nil {
		return err
	}
	defer s.leaveQueued()
	to, from := len(dev), len(host)
	if down {
		to, from = from, to
	}
	if err := s.dev.self.CheckPairs(op, to, from); err != nil {
		return err
	}
	b := batches.Get().(*batch)
	defer batches.Put(b)
	*b = batch{small: b.small[:0], to: b.to[:0], from: b.from[:0], bytes: b.bytes[:0]}
	for i, h := range host {
		if err := b.add(s, op, h, uint64(dev[i]), down, gather != 0); err != nil {
			return err
		}
	}
	if n := len(b.small); n > 0 {
		if err := s.dev.check(op, b.sum, C.cistern_copy_ranges(s.dev.c, s.handle, gather, &b.small[0], C.size_t(n))); err != nil {
			return err
		}
	}
	if s.Capturing() { // graphs have no operation for the driver's batch
		for i := range b.to {
			if err := s.dev.check(op, int64(b.bytes[i]), C.cistern_batch(s.dev.c, s.handle, &b.to[i], &b.from[i], &b.bytes[i], 1)); err != nil {
				return err
			}
		}
		return nil
	}
	if n := len(b.to); n > 0 {
		return s.dev.check(op, b.sum, C.cistern_batch(s.dev.c, s.handle, &b.to[0], &b.from[0], &b.bytes[0], C.size_t(n)))
	}
	return nil
}

func (b *batch) add(s *stream, op string, host []byte, dev uint64, down, gather bool) error {
	n := int64(len(host))
	to, from := dev, address(host)
	if down {
		to, from = from, to
	}
	kernelFrom, err := s.locate(op, from, n, !down)
	if err != nil {
		return err
	}
	kernelTo, err := s.locate(op, to, n, down)
	if err != nil || n == 0 {
		return err
	}
	b.sum += n
	if gather && n <= gathered && kernelFrom != 0 && kernelTo != 0 {
		b.small = append(b.small, C.cistern_range{to: C.uint64_t(kernelTo), from: C.uint64_t(kernelFrom), bytes: C.uint64_t(n)})
	} else {
		b.to, b.from, b.bytes = append(b.to, C.uint64_t(to)), append(b.from, C.uint64_t(from)), append(b.bytes, C.size_t(n))
	}
	return nil
}

// loadGather loads the kernel of batches when nothing is queued that the load could have to wait
// for. On GPUs and drivers that are too old for the kernel, batches use only the driver's copies.
func (d *Device) loadGather() {
	m, err := d.LoadModule(ptx.Compiled)
	if errors.Is(err, device.ErrUnsupported) {
		m, err = d.LoadModule(ptx.PTX)
	}
	if err != nil {
		return
	}
	if k, err := m.Kernel("copy_ranges"); err == nil {
		d.gather = k.(*kernel).handle
	}
}
