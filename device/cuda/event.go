//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"context"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// event is a handle for a CUevent of the device's pool. CUevents are reused, handles are not,
// because a closed handle must stay closed while its CUevent belongs to another one. The gate keeps
// the CUevent out of the pool until the last call that uses it has left.
type event struct {
	dev      *Device
	handle   C.uint64_t
	timed    bool
	recorded atomic.Bool
	// The capture of the last record, or nil if that was not captured.
	captured atomic.Pointer[capture]
	mark     atomic.Pointer[captureMark] // of that record
	place    place
	closed   atomic.Bool
	gate     backend.Gate
}

func (d *Device) NewEvent(opts device.EventOptions) (device.Event, error) {
	if err := d.enter("NewEvent"); err != nil {
		return nil, err
	}
	defer d.gate.Leave()
	h, err := d.pool(opts.Timed).get(d)
	if err != nil {
		return nil, err
	}
	e := &event{dev: d, handle: h, timed: opts.Timed}
	e.gate.Owner = e // not a method value, which would be another allocation
	d.opened.Add(opened.EventKind(opts.Timed), unsafe.Pointer(e))
	return e, nil
}

func (d *Device) pool(timed bool) *pool {
	if timed {
		return &d.events[1]
	}
	return &d.events[0]
}

func (e *event) Timed() bool { return e.timed }

// enter begins a call that needs the device, too. The caller must leave both gates.
func (e *event) enter(op string) error {
	if err := e.dev.enter(op); err != nil {
		return err
	}
	if !e.gate.Enter() {
		e.dev.gate.Leave()
		return e.dev.self.EventClosed(op)
	}
	return nil
}

func (e *event) leave() {
	e.gate.Leave()
	e.dev.gate.Leave()
}

func (e *event) Query() (bool, error) {
	if err := e.enter("Query"); err != nil {
		return false, err
	}
	defer e.leave()
	if e.captured.Load() != nil {
		return false, e.dev.self.CapturedEvent("Query")
	}
	return e.query()
}

func (e *event) query() (bool, error) {
	at := e.place.visit()
	// The record of a timed event is an operation itself, which the stream does not count.
	if !e.recorded.Load() || !e.timed && at.complete() {
		return true, nil
	}
	done, err := e.dev.ready("Query", C.cistern_event_query(e.dev.c, e.handle))
	if done {
		at.learn()
	}
	return done, err
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.enter("Synchronize"); err != nil {
		return err
	}
	if ctx != nil && e.captured.Load() != nil {
		e.leave()
		return e.dev.self.CapturedEvent("Synchronize")
	}
	return e.dev.await(ctx, "Synchronize", e.leave, e.query, e.wait)
}

func (e *event) wait() error {
	at := e.place.visit()
	err := e.dev.check("Synchronize", 0, C.cistern_event_synchronize(e.dev.c, e.handle))
	if err == nil {
		at.learn()
	}
	return err
}

// Close returns the event to the pool. Queued waits keep the record that they wait for.
func (e *event) Close() error {
	if !e.closed.Swap(true) {
		e.dev.opened.Remove(unsafe.Pointer(e))
		e.gate.Shut()
	}
	return nil
}

// Emptied returns the CUevent to the pool after the last use of the event.
func (e *event) Emptied() { e.dev.pool(e.timed).Put(e.handle) }

// own returns e as an event of d.
func (d *Device) own(op string, e device.Event) (*event, error) {
	ev, err := backend.Event[*event](d.self, op, e)
	if err == nil {
		err = d.self.CheckOwner(op, ev.dev.id, d.id)
	}
	return ev, err
}

func (s *stream) Record(e device.Event) error {
	if err := s.enter("Record"); err != nil {
		return err
	}
	defer s.gate.Leave()
	ev, err := s.dev.own("Record", e)
	if err != nil {
		return err
	}
	if !ev.gate.Enter() {
		return s.dev.self.EventClosed("Record")
	}
	defer ev.gate.Leave()
	return ev.record(s)
}

func (e *event) record(s *stream) error {
	captured := s.Capturing()
	m := s.capture.Load().mark(s)
	err := e.place.set(s, captured, func() error {
		if !captured && !e.timed && s.position.idle() {
			return nil
		}
		return s.dev.check("Record", 0, C.cistern_event_record(s.dev.c, e.handle, s.handle))
	})
	if err == nil {
		e.recorded.Store(true)
		if c := s.capture.Load(); c != nil || e.captured.Load() != nil {
			e.captured.Store(c)
			e.mark.Store(m)
		}
	}
	return err
}

func (s *stream) Wait(e device.Event) error {
	if err := s.enter("Wait"); err != nil {
		return err
	}
	defer s.gate.Leave()
	ev, err := backend.Event[*event](s.dev.self, "Wait", e)
	if err != nil {
		return err
	}
	if !ev.gate.Enter() {
		return s.dev.self.EventClosed("Wait")
	}
	defer ev.gate.Leave()
	if !ev.recorded.Load() {
		return nil
	}
	of, c := ev.captured.Load(), s.capture.Load()
	if of == nil && c == nil && ev.place.visit().complete() {
		return nil
	}
	if of != nil || c != nil {
		return s.waitCaptured(ev, of, c)
	}
	defer s.position.queued.Add(1)
	return s.dev.check("Wait", 0, C.cistern_stream_wait(s.dev.c, s.handle, ev.handle))
}

// Elapsed returns times with a resolution of half a microsecond.
func (d *Device) Elapsed(start, end device.Event) (time.Duration, error) {
	var events [2]*event
	for i, e := range [2]device.Event{start, end} {
		ev, err := d.own("Elapsed", e)
		if err != nil {
			return 0, err
		}
		if err := ev.enter("Elapsed"); err != nil {
			return 0, err
		}
		defer ev.leave()
		if ev.captured.Load() != nil {
			return 0, d.self.CapturedEvent("Elapsed")
		}
		if err := d.self.CheckElapsed(ends[i], ev.timed, ev.recorded.Load(), true); err != nil {
			return 0, err
		}
		events[i] = ev
	}
	var ms C.float
	code := C.cistern_event_elapsed(d.c, events[0].handle, events[1].handle, &ms)
	if code == backend.CodeNotReady {
		return 0, d.unfinished(events)
	}
	return time.Duration(float64(ms) * float64(time.Millisecond)), d.check("Elapsed", 0, code)
}

// ends are the names of Elapsed's events.
var ends = [2]string{"start", "end"}

// unfinished returns an error that names the incomplete event. Elapsed queries the events only
// after a failure, because a query takes the driver as long as a launch.
func (d *Device) unfinished(events [2]*event) error {
	done, err := events[0].query()
	which := ends[0]
	if done {
		which = ends[1]
	}
	if err != nil {
		return err
	}
	return d.self.CheckElapsed(which, true, true, false)
}

// pool reuses CUevents, because making one costs the driver more than using it.
type pool struct {
	timed bool
	backend.Handles[C.uint64_t]
}

func (p *pool) get(d *Device) (C.uint64_t, error) {
	return p.Take(func(h *C.uint64_t) error {
		timed := C.int(0)
		if p.timed {
			timed = 1
		}
		return d.check("NewEvent", 0, C.cistern_event_create(d.c, timed, h))
	})
}

// close destroys all events.
func (p *pool) close(d *Device) {
	for _, h := range p.End() {
		C.cistern_event_destroy(d.c, h)
	}
}

func (e *event) String() string { return "event of " + e.dev.name }
