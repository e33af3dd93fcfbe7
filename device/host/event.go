package host

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// event is a place for its last record.
type event struct {
	dev    *Device
	timed  bool
	last   atomic.Pointer[record] // nil: never recorded
	closed atomic.Bool
}

// NewEvent makes an event. Timed or not, it costs the same here.
func (d *Device) NewEvent(opts device.EventOptions) (device.Event, error) {
	if err := d.usable("NewEvent"); err != nil {
		return nil, err
	}
	return &event{dev: d, timed: opts.Timed}, nil
}

// open is the error of every call on a closed event, or on an event of a closed device.
func (e *event) open(op string) error {
	if err := e.dev.open(op); err != nil {
		return err
	}
	race.Disable()
	closed := e.closed.Load()
	race.Enable()
	if closed {
		return &device.Error{Op: op, Device: "host", Code: codeInvalidHandle, Detail: "the event", Err: device.ErrClosed}
	}
	return nil
}

// present is the last record, or nil.
func (e *event) present() *record {
	race.Disable()
	defer race.Enable()
	return e.last.Load()
}

func (e *event) Timed() bool { return e.timed }

func (e *event) Query() (bool, error) {
	if err := e.open("Query"); err != nil {
		return false, err
	}
	if err := e.dev.stuckError(); err != nil {
		return false, err
	}
	r := e.present()
	return r == nil || r.query(), nil
}

func (e *event) Synchronize(ctx context.Context) error {
	if err := e.open("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return withoutContext()
	}
	if r := e.present(); r != nil {
		if err := r.synchronize(ctx); err != nil {
			return err
		}
	}
	return e.dev.stuckError()
}

func withoutContext() error {
	return invalid("Synchronize", 0, "the context is nil; use context.Background()")
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
	<-cancel // once more where the race detector sees it: who cancelled happens before the return
	return fmt.Errorf("device: Synchronize on host: %w", ctx.Err())
}

func (e *event) Close() error {
	race.Disable()
	e.closed.Store(true)
	race.Enable()
	return nil
}

// own checks an event that a call gets. Any device's events will do if dev is nil.
func own(op string, e device.Event, dev *Device) (*event, error) {
	mine, ok := e.(*event)
	switch {
	case e == nil || ok && mine == nil:
		return nil, invalid(op, 0, "the event is nil")
	case !ok:
		return nil, invalid(op, 0, "the event is a %T; use one of a host device", e)
	case dev != nil && mine.dev != dev:
		return nil, invalid(op, 0, "the event is of host device %d; use one of this device, %d", mine.dev.id, dev.id)
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
	o := newOp(opRecord)
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
	r := other.present()
	if r == nil {
		return nil
	}
	o := newOp(opWait)
	o.rec = r
	return s.push("Wait", o)
}

// codeNotReady is CUDA's code of events that are not complete.
const codeNotReady = 600

// Elapsed is the time between two records, by the device's clock, which is the process's monotonic clock.
func (d *Device) Elapsed(start, end device.Event) (time.Duration, error) {
	if err := d.usable("Elapsed"); err != nil {
		return 0, err
	}
	var at [2]time.Duration
	for i, e := range [2]device.Event{start, end} {
		mine, err := own("Elapsed", e, d)
		if err != nil {
			return 0, err
		}
		which := [2]string{"start", "end"}[i]
		r := mine.present()
		switch {
		case !mine.timed:
			return 0, invalid("Elapsed", 0, "the %s event is untimed; make it with EventOptions.Timed", which)
		case r == nil:
			return 0, invalid("Elapsed", 0, "the %s event was never recorded", which)
		case !r.query():
			return 0, &device.Error{Op: "Elapsed", Device: "host", Code: codeNotReady, Err: device.ErrInvalid,
				Detail: fmt.Sprintf("the %s event is not complete; synchronize it first", which)}
		}
		at[i] = r.at
	}
	return at[1] - at[0], nil
}
