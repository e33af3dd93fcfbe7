package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/internal/race"
)

// event holds its last record.
type event struct {
	dev      *Device
	last     atomic.Pointer[record] // nil if never recorded
	captured atomic.Pointer[mark]   // the last record's mark, or nil if it was not captured
	timed    bool
	closed   atomic.Bool
}

// NewEvent makes an event. Timed events cost no more than others here.
func (d *Device) NewEvent(opts device.EventOptions) (device.Event, error) {
	if err := d.usable("NewEvent"); err != nil {
		return nil, err
	}
	e := &event{dev: d, timed: opts.Timed}
	d.opened.Add(opened.EventKind(opts.Timed), unsafe.Pointer(e))
	return e, nil
}

// open returns the error of calls on a closed event or on an event of a closed device, or nil.
func (e *event) open(op string) error {
	if err := e.dev.open(op); err != nil {
		return err
	}
	race.Disable()
	closed := e.closed.Load()
	race.Enable()
	if closed {
		return self.EventClosed(op)
	}
	return nil
}

// present returns the last record, or nil.
func (e *event) present() *record {
	race.Disable()
	r := e.last.Load()
	race.Enable()
	return r
}

// lastCaptured returns the mark of the last record, or nil if that was not captured.
func (e *event) lastCaptured() *mark {
	race.Disable()
	m := e.captured.Load()
	race.Enable()
	return m
}

// setCaptured sets the mark of the last record; nil means not captured.
//
//go:norace
func (e *event) setCaptured(m *mark) {
	race.Disable()
	e.captured.Store(m)
	race.Enable()
}

func (e *event) Timed() bool { return e.timed }

func (e *event) Query() (bool, error) {
	if err := e.open("Query"); err != nil {
		return false, err
	}
	if err := e.dev.stuckError(); err != nil {
		return false, err
	}
	if e.lastCaptured() != nil {
		return false, self.CapturedEvent("Query")
	}
	r := e.present()
	return r == nil || r.query(), nil
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.open("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return self.NoContext("Synchronize")
	}
	if e.lastCaptured() != nil {
		return self.CapturedEvent("Synchronize")
	}
	if r := e.present(); r != nil {
		if err := r.synchronize(ctx); err != nil {
			return err
		}
	}
	return e.dev.stuckError()
}

// synchronize waits for r or ctx.
func (r *record) synchronize(ctx context.Context) error {
	if r.query() {
		return nil
	}
	cancel := ctx.Done()
	if r.wait(cancel) {
		return nil
	}
	// Receive again where the race detector sees it, so that the cancelling goroutine's actions
	// happen before the return.
	<-cancel
	return fmt.Errorf("device: Synchronize on host: %w", ctx.Err())
}

func (e *event) Close() error {
	race.Disable()
	e.closed.Store(true)
	race.Enable()
	e.dev.opened.Remove(unsafe.Pointer(e))
	return nil
}

// own checks an argument event. If dev is nil the event may belong to any host device.
func own(op string, e device.Event, dev *Device) (*event, error) {
	mine, err := backend.Event[*event](self, op, e)
	if err == nil && dev != nil {
		err = self.CheckOwner(op, mine.dev.id, dev.id)
	}
	if err != nil {
		return nil, err
	}
	return mine, mine.open(op)
}

func (s *stream) Record(e device.Event) error {
	if err := s.usable("Record"); err != nil {
		return err
	}
	mine, err := own("Record", e, s.dev)
	if err != nil {
		return err
	}
	if mine.Timed() && !s.queue.timed.Load() {
		s.queue.timed.Store(true)
	}
	o := s.member.newOp(&s.queue, opRecord)
	o.event, o.rec = mine, new(record)
	return s.push("Record", o)
}

func (s *stream) Wait(e device.Event) error {
	if err := s.usable("Wait"); err != nil {
		return err
	}
	other, err := own("Wait", e, nil)
	if err != nil {
		return err
	}
	if m, c := other.lastCaptured(), s.member.capture(); m != nil || c != nil {
		return other.join(s, m, c)
	}
	r := other.present()
	if r == nil {
		return nil
	}
	o := s.queue.newOp(opWait)
	o.rec = r
	return s.push("Wait", o)
}

// join is Wait if the event was captured as m, the stream is in the capture c, or both.
func (e *event) join(s *stream, m *mark, c *capture) error {
	switch {
	case m == nil && e.present() == nil:
		return nil
	case m == nil:
		return self.Isolated(s.id)
	case m.capture == c:
	case c != nil:
		return self.Merged(s.id)
	case e.dev != s.dev:
		return self.OtherDevices(s.id)
	}
	o := m.capture.newOp(opWait)
	o.captured.mark = m
	if !m.capture.add(s, o) {
		if s.member.closes() {
			return self.StreamClosed("Wait", s.id)
		}
		return self.CapturedEvent("Wait")
	}
	return nil
}

// Elapsed returns the time between two records by the device's clock, which is the process's
// monotonic clock.
func (d *Device) Elapsed(start, end device.Event) (time.Duration, error) {
	from, to, err := d.timed("Elapsed", start, end)
	if err != nil {
		return 0, err
	}
	return to.at - from.at, nil
}

// BusyTime returns Elapsed without the time in which the stream's goroutine waited for an operation
// or a record.
func (d *Device) BusyTime(start, end device.Event) (time.Duration, error) {
	from, to, err := d.timed("BusyTime", start, end)
	switch {
	case err != nil:
		return 0, err
	case from.on != to.on:
		return 0, self.Invalid("BusyTime", 0, "the events were recorded on streams %d and %d: they must be of one", from.on, to.on)
	case to.at < from.at:
		return 0, self.Invalid("BusyTime", 0, "the first event was recorded %v after the second", from.at-to.at)
	}
	return to.at - from.at - (to.idle - from.idle), nil
}

// timed returns the records of two timed events, which must be complete.
func (d *Device) timed(op string, start, end device.Event) (from, to *record, err error) {
	if err := d.usable(op); err != nil {
		return nil, nil, err
	}
	var records [2]*record
	for i, e := range [2]device.Event{start, end} {
		mine, err := own(op, e, d)
		if err != nil {
			return nil, nil, err
		}
		if mine.lastCaptured() != nil {
			return nil, nil, self.CapturedEvent(op)
		}
		which := [2]string{"start", "end"}[i]
		r := mine.present()
		if err := self.CheckElapsed(which, mine.timed, r != nil, r == nil || r.query()); err != nil {
			return nil, nil, err
		}
		records[i] = r
	}
	return records[0], records[1], nil
}

func (e *event) String() string { return fmt.Sprintf("event of host device %d", e.dev.id) }
