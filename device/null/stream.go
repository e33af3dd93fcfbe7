package null

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// Stream is a stream of a null device.
type Stream struct {
	id       uint64
	priority int
	dev      *Device
	busy     atomic.Bool // something is queued
	closed   atomic.Bool

	launching backend.Launching // nil if there are no hooks

	// dev.mu guards the fields below.
	closing bool
	listed  bool // in dev.streams
	queue   []op // from head on
	head    int
	queued  uint64 // number of operations that ever entered the queue
	done    uint64 // number of these that are done
}

// NewStream makes a stream with an ID that no other stream has.
func (d *Device) NewStream(opts device.StreamOptions) (device.Stream, error) {
	s, err := d.newStream(device.NewID(), opts)
	if err != nil {
		return nil, err
	}
	return s, nil
}

// NewStreamWithID makes a stream with the given ID. The caller must ensure that the ID is unique.
func (d *Device) NewStreamWithID(id uint64) (*Stream, error) {
	return d.newStream(id, device.StreamOptions{})
}

func (d *Device) newStream(id uint64, opts device.StreamOptions) (*Stream, error) {
	if err := d.usable("NewStream"); err != nil {
		return nil, err
	}
	s := &Stream{id: id, priority: opts.Priority, dev: d, launching: opts.Launching}
	d.opened.Add(opened.Stream, unsafe.Pointer(s))
	return s, nil
}

// ID returns the stream's ID.
func (s *Stream) ID() uint64 { return s.id }

// Device returns the stream's device.
func (s *Stream) Device() device.Device { return s.dev }

// Priority returns the priority that the stream was made with.
func (s *Stream) Priority() int { return s.priority }

// Hold queues an operation that is not done until release is called. Until then nothing queued
// later is done, and events recorded later are not complete. Releasing again does nothing.
func (s *Stream) Hold() (release func(), err error) {
	if err := s.usable("Hold"); err != nil {
		return nil, err
	}
	g := &gate{}
	if _, err := s.enqueue("Hold", op{gate: g}); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		s.dev.mu.Lock()
		defer s.dev.mu.Unlock()
		g.open = true
		s.advance()
	}), nil
}

func (s *Stream) usable(op string) error {
	if err := s.dev.usable(op); err != nil {
		return err
	}
	if s.closed.Load() {
		return self.StreamClosed(op, s.id)
	}
	return nil
}

// shut returns the error of calls that queue on a closing stream or device, or nil. The caller
// holds dev.mu.
func (s *Stream) shut(op string) error {
	if s.closing {
		return self.StreamClosed(op, s.id)
	}
	return s.dev.usable(op)
}

// enqueue is push for a stream that may be closed.
func (s *Stream) enqueue(name string, o op) (uint64, error) {
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.shut(name); err != nil {
		return 0, err
	}
	return s.push(o), nil
}

// Record records e, which is complete at once if the stream is not held.
func (s *Stream) Record(e device.Event) error {
	own, err := s.dev.own("Record", e)
	if err != nil {
		return err
	}
	if err := s.usable("Record"); err != nil {
		return err
	}
	if !own.timed && !s.busy.Load() {
		own.pending.Store(false)
		return nil
	}
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.shut("Record"); err != nil {
		return err
	}
	own.stream, own.number, own.marked = s, s.queued, false
	own.pending.Store(true)
	o := op{}
	if own.timed {
		o.event = own
	}
	s.push(o)
	own.complete()
	return nil
}

// mark stores the time at which a timed event's record is complete. The caller holds dev.mu.
func (e *event) mark() { e.at, e.marked = time.Since(e.dev.start), true }

// Wait makes everything queued later wait for the present record of e.
func (s *Stream) Wait(e device.Event) error {
	own, err := s.dev.own("Wait", e)
	if err != nil {
		return err
	}
	if err := s.usable("Wait"); err != nil {
		return err
	}
	if !own.pending.Load() {
		return nil
	}
	if own.dev != s.dev {
		return s.waitElsewhere(own)
	}
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	if err := s.shut("Wait"); err != nil {
		return err
	}
	if !own.complete() {
		s.push(op{on: own.stream, until: own.number})
	}
	return nil
}

// waitElsewhere waits for an event of another null device, with a gate that a goroutine opens.
func (s *Stream) waitElsewhere(e *event) error {
	e.dev.mu.Lock()
	on, n := e.stream, e.number
	e.dev.mu.Unlock()
	release, err := s.Hold()
	if err != nil {
		return err
	}
	go func() {
		_ = e.dev.wait(context.Background(), func() bool { return on.done > n })
		release()
	}()
	return nil
}

// OnDone runs fn on the device's completion goroutine once everything queued before is done.
func (s *Stream) OnDone(fn func(error)) error {
	if err := s.usable("OnDone"); err != nil {
		return err
	}
	if fn == nil {
		return self.NoFunction()
	}
	_, err := s.enqueue("OnDone", op{fn: fn})
	return err
}

// Query reports whether everything queued is done.
func (s *Stream) Query() (bool, error) {
	if err := s.usable("Query"); err != nil {
		return false, err
	}
	return !s.busy.Load(), nil
}

// Synchronize waits until everything queued before the call is done.
func (s *Stream) Synchronize(ctx context.Context) error {
	if err := s.usable("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return self.NoContext("Synchronize")
	}
	return s.settle(ctx)
}

// Closed reports whether Close has finished.
func (s *Stream) Closed() bool { return s.closed.Load() || s.dev.ended.Load() }

// Close waits for everything queued and ends the stream.
func (s *Stream) Close() error {
	s.close()
	s.dev.opened.Remove(unsafe.Pointer(s))
	return nil
}

func (s *Stream) close() {
	s.dev.mu.Lock()
	s.closing = true
	s.dev.mu.Unlock()
	_ = s.settle(context.Background())
	s.dev.mu.Lock()
	defer s.dev.mu.Unlock()
	s.closed.Store(true)
}

// String returns the stream's ID and device.
func (s *Stream) String() string { return fmt.Sprintf("stream %d of null device %d", s.id, s.dev.id) }
