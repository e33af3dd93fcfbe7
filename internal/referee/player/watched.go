package main

import (
	"fmt"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// watchedDevice is a host device that lets pinned allocations fail, and that knows how much pinned memory is held.
type watchedDevice struct {
	*host.Device
	player *transferPlayer

	mu       sync.Mutex // large copies are made by several goroutines
	failures int        // of pinned allocations, still to come
	pinned   int64
	bad      error
	queued   []string // copies of the present call
}

func (d *watchedDevice) AllocPinned(bytes int64) ([]byte, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failures > 0 {
		d.failures--
		return nil, &device.Error{Op: "AllocPinned", Device: "host", Bytes: bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory}
	}
	if d.pinned += bytes; d.player.config.MaxBytes > 0 && d.pinned > d.player.config.MaxBytes {
		d.bad = fmt.Errorf("the driver holds %d bytes, over the limit", d.pinned)
	}
	b, err := d.Device.AllocPinned(bytes)
	if err != nil {
		d.pinned -= bytes
	}
	return b, err
}

func (d *watchedDevice) FreePinned(b []byte) error {
	err := d.Device.FreePinned(b)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.pinned -= int64(len(b))
	}
	return err
}

// copyingStream is a stream of the host device.
type copyingStream interface {
	device.Stream
	device.BatchCopier
}

// watchedStream notes the copies that are queued on a stream, in their order.
type watchedStream struct {
	copyingStream
	player *transferPlayer
	n      int
}

// Stream is the stream that nobody watches.
func (s *watchedStream) Stream() device.Stream { return s.copyingStream }

// Device is the one that the pool knows.
func (s *watchedStream) Device() device.Device { return s.player.dev }

func (s *watchedStream) note(format string, args ...any) {
	d := s.player.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queued = append(d.queued, fmt.Sprintf(" on %d: %s", s.n, fmt.Sprintf(format, args...)))
}

// at is an address as a place in a block: addresses differ from one process to another.
func (s *watchedStream) at(p device.Ptr) string {
	for i, b := range s.player.blocks {
		if p >= b.Ptr() && p < b.Ptr()+device.Ptr(b.Size()) {
			return fmt.Sprintf("b%d+%d", i, p-b.Ptr())
		}
	}
	return "elsewhere"
}

func (s *watchedStream) CopyH2D(dst device.Ptr, src []byte) error {
	s.note("h2d %s %d", s.at(dst), len(src))
	return s.copyingStream.CopyH2D(dst, src)
}

func (s *watchedStream) CopyD2H(dst []byte, src device.Ptr) error {
	s.note("d2h %s %d", s.at(src), len(dst))
	return s.copyingStream.CopyD2H(dst, src)
}

func (s *watchedStream) CopyD2D(dst, src device.Ptr, bytes int64) error {
	s.note("d2d %s %s %d", s.at(dst), s.at(src), bytes)
	return s.copyingStream.CopyD2D(dst, src, bytes)
}

func (s *watchedStream) Copy2D(c *device.Copy2D) error {
	s.note("copy2d")
	return s.copyingStream.Copy2D(c)
}

func (s *watchedStream) Memset(dst device.Ptr, value byte, bytes int64) error {
	s.note("memset %s %d %d", s.at(dst), value, bytes)
	return s.copyingStream.Memset(dst, value, bytes)
}

func (s *watchedStream) CopyH2DBatch(dst []device.Ptr, src [][]byte) error {
	for i := range dst {
		s.note("h2d of a batch %s %d", s.at(dst[i]), len(src[i]))
	}
	return s.copyingStream.CopyH2DBatch(dst, src)
}

func (s *watchedStream) CopyD2HBatch(dst [][]byte, src []device.Ptr) error {
	for i := range dst {
		s.note("d2h of a batch %s %d", s.at(src[i]), len(dst[i]))
	}
	return s.copyingStream.CopyD2HBatch(dst, src)
}
