package host

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// stream is a queue and, from its first operation on, a goroutine.
type stream struct {
	id        uint64
	priority  int
	dev       *Device
	launching backend.Launching // nil if there are no hooks
	// Separates the fields above, which both sides read for each operation, from those below, which
	// they write.
	_       [64]byte
	queue   queue
	running *op // the worker's operation
	kernels kernels

	member membership

	next, prev *stream // in the device's list
}

// NewStream makes a stream. The priority is only stored, because goroutines have none.
func (d *Device) NewStream(opts device.StreamOptions) (device.Stream, error) {
	s, err := d.newStream(opts)
	if err != nil {
		return nil, err // not s, because a nil *stream in the interface would not be nil
	}
	d.opened.Add(opened.Stream, unsafe.Pointer(s))
	return s, nil
}

func (d *Device) newStream(opts device.StreamOptions) (*stream, error) {
	if err := d.usable("NewStream"); err != nil {
		return nil, err
	}
	s := &stream{id: device.NewID(), priority: opts.Priority, dev: d, launching: opts.Launching}
	s.queue.init()
	if !d.streams.add(s) {
		return nil, self.Closed("NewStream")
	}
	return s, nil
}

func (s *stream) ID() uint64            { return s.id }
func (s *stream) Device() device.Device { return s.dev.front }
func (s *stream) Priority() int         { return s.priority }

// open returns the error of calls on a closed stream, or nil.
func (s *stream) open(op string) error {
	if err := s.dev.open(op); err != nil {
		return err
	}
	if s.queue.isClosed() {
		return self.StreamClosed(op, s.id)
	}
	return nil
}

// usable returns the error that calls return instead of queuing, or nil.
func (s *stream) usable(op string) error {
	if err := s.open(op); err != nil {
		return err
	}
	return s.dev.stuckError()
}

// push queues o or captures it. The caller must not use o after push.
func (s *stream) push(op string, o *op) error {
	if c := o.uses.capture; c != nil {
		if !c.add(s, o) {
			o.uses.drop()
			return self.CaptureEnded(op, s.id)
		}
		return nil
	}
	if s.dev.dry {
		return s.pretend(op, o)
	}
	ok, start := s.queue.push(o)
	if !ok {
		o.uses.drop()
		return self.StreamClosed(op, s.id)
	}
	if start {
		go s.work()
	}
	return nil
}

func (s *stream) OnDone(fn func(error)) error {
	if err := s.usable("OnDone"); err != nil {
		return err
	}
	if fn == nil {
		return self.NoFunction()
	}
	if s.Capturing() {
		return self.Capturing("OnDone", s.id)
	}
	o := s.queue.newOp(opDone)
	o.fn = fn
	return s.push("OnDone", o)
}

func (s *stream) Query() (bool, error) {
	if err := s.usable("Query"); err != nil {
		return false, err
	}
	if s.Capturing() {
		return false, self.Capturing("Query", s.id)
	}
	_, done := s.queue.tail(false)
	return done, nil
}

func (s *stream) Synchronize(ctx context.Context) error {
	if err := s.open("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return self.NoContext("Synchronize")
	}
	if s.Capturing() {
		return self.Capturing("Synchronize", s.id)
	}
	if err := s.synchronize(ctx); err != nil {
		return err
	}
	return s.dev.stuckError()
}

func (s *stream) synchronize(ctx context.Context) error {
	if s.caughtUp() {
		return nil
	}
	r, done := s.queue.tail(true)
	if done {
		return nil
	}
	return r.synchronize(ctx)
}

func (s *stream) Closed() bool { return s.queue.isGone() }

// Close waits for everything queued. The first Close returns the device's sticky error, if any.
func (s *stream) Close() error {
	if !s.member.close() && s.dev.open("Close") == nil {
		return self.Capturing("Close", s.id)
	}
	s.dev.catchUp()
	if first := s.queue.close(); !first {
		return nil
	}
	s.dev.streams.remove(s)
	s.dev.opened.Remove(unsafe.Pointer(s))
	return s.dev.stuckError()
}

func (s *stream) String() string { return fmt.Sprintf("stream %d of host device %d", s.id, s.dev.id) }
