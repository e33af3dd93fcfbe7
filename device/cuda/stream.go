//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// stream is a CUstream that does not wait for the legacy default stream.
//
// Its calls take no lock of this package. The driver queues concurrent calls in some order, and
// blocks inside a call while its queue is full. gate keeps the handle alive meanwhile. Calls enter
// it instead of the device's gate, because the device's Close closes its streams before it releases
// anything else.
type stream struct {
	id       uint64
	priority int
	dev      *Device
	handle   C.uint64_t

	launching backend.Launching // nil if there are no hooks

	gate    backend.Gate
	closing sync.Once
	closed  atomic.Bool

	position position

	onDone sync.Mutex // keeps the callbacks in the order of their events

	capture   atomic.Pointer[capture] // the stream's capture, or nil
	capturing sync.Mutex              // guards joining a capture and ending
	ending    bool                    // the stream is being closed and joins no capture any more
	// A CUevent that is recorded when the stream joins a capture; 0 if it never did.
	before C.uint64_t
}

var (
	_ device.Stream      = (*stream)(nil)
	_ device.BatchCopier = (*stream)(nil)
)

// NewStream makes a stream. Priorities outside the GPU's range are clamped.
func (d *Device) NewStream(opts device.StreamOptions) (device.Stream, error) {
	if err := d.enter("NewStream"); err != nil {
		return nil, err
	}
	defer d.gate.Leave()
	s := &stream{id: device.NewID(), priority: opts.Priority, dev: d, launching: opts.Launching}
	if err := d.check("NewStream", 0, C.cistern_stream_create(d.c, C.int(opts.Priority), &s.handle)); err != nil {
		return nil, err
	}
	if !d.streams.add(s) {
		C.cistern_stream_destroy(d.c, s.handle)
		return nil, d.self.Closed("NewStream")
	}
	d.opened.Add(opened.Stream, unsafe.Pointer(s))
	return s, nil
}

func (s *stream) ID() uint64            { return s.id }
func (s *stream) Device() device.Device { return s.dev }
func (s *stream) Priority() int         { return s.priority }
func (s *stream) Closed() bool          { return s.closed.Load() }

// enter begins a call. The caller must leave s.gate.
func (s *stream) enter(op string) error {
	if !s.gate.Enter() {
		return s.dev.self.StreamClosed(op, s.id)
	}
	if err := s.dev.stuckError(); err != nil {
		s.gate.Leave()
		return err
	}
	return nil
}

// leaveQueued ends a call that may have queued an operation.
func (s *stream) leaveQueued() {
	s.position.queued.Add(1)
	s.gate.Leave()
}

func (s *stream) Query() (bool, error) {
	if err := s.enter("Query"); err != nil {
		return false, err
	}
	defer s.gate.Leave()
	if s.Capturing() {
		return false, s.dev.self.Capturing("Query", s.id)
	}
	return s.query()
}

func (s *stream) query() (bool, error) {
	queued := s.position.queued.Load()
	done, err := s.dev.ready("Query", C.cistern_stream_query(s.dev.c, s.handle))
	if done {
		s.position.reached(queued)
	}
	return done, err
}

func (s *stream) Synchronize(ctx context.Context) error {
	if err := s.enter("Synchronize"); err != nil {
		return err
	}
	if ctx != nil && s.Capturing() {
		s.gate.Leave()
		return s.dev.self.Capturing("Synchronize", s.id)
	}
	return s.dev.await(ctx, "Synchronize", s.gate.Leave, s.query, s.wait)
}

func (s *stream) wait() error {
	queued := s.position.queued.Load()
	err := s.dev.check("Synchronize", 0, C.cistern_stream_synchronize(s.dev.c, s.handle))
	if err == nil {
		s.position.reached(queued)
	}
	return err
}

func (s *stream) OnDone(fn func(error)) error {
	if err := s.enter("OnDone"); err != nil {
		return err
	}
	defer s.gate.Leave()
	if fn == nil {
		return s.dev.self.NoFunction()
	}
	if s.Capturing() {
		return s.dev.self.Capturing("OnDone", s.id)
	}
	return s.dev.callbacks.push(s, fn)
}

// Close waits for everything queued. The first Close returns the device's sticky error, if any.
func (s *stream) Close() (err error) {
	s.capturing.Lock()
	captured := s.Capturing() && s.dev.stuckError() == nil
	s.ending = s.ending || !captured
	s.capturing.Unlock()
	if captured {
		return s.dev.self.Capturing("Close", s.id)
	}
	s.dev.opened.Remove(unsafe.Pointer(s))
	return s.finish()
}

// finish is Close for a stream that is not captured, or whose device is unusable.
func (s *stream) finish() (err error) {
	s.closing.Do(func() {
		s.gate.ShutAndWait()
		err = s.wait()
		if s.before != 0 {
			s.dev.pool(false).Put(s.before)
		}
		C.cistern_stream_destroy(s.dev.c, s.handle)
		s.closed.Store(true)
		s.dev.streams.remove(s)
	})
	return err
}

func (s *stream) String() string { return fmt.Sprintf("stream %d of %s", s.id, s.dev.name) }
