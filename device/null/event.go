package null

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
	"github.com/cistern-ml/cistern/internal/opened"
)

// event is complete, or refers to an operation of a stream.
type event struct {
	dev     *Device
	timed   bool
	closed  atomic.Bool
	pending atomic.Bool // maybe not complete: stream and number are valid

	// dev.mu guards the fields below.
	stream *Stream
	number uint64
	at     time.Duration // completion time of a timed event's record
	marked bool          // at is valid
}

// NewEvent makes an event. Its Record and Query allocate nothing.
func (d *Device) NewEvent(opts device.EventOptions) (device.Event, error) {
	if err := d.usable("NewEvent"); err != nil {
		return nil, err
	}
	e := &event{dev: d, timed: opts.Timed}
	d.opened.Add(opened.EventKind(opts.Timed), unsafe.Pointer(e))
	return e, nil
}

func (e *event) usable(op string) error {
	if err := e.dev.usable(op); err != nil {
		return err
	}
	if e.closed.Load() {
		return self.EventClosed(op)
	}
	return nil
}

// Query reports whether the last record is complete.
func (e *event) Query() (bool, error) {
	if err := e.usable("Query"); err != nil {
		return false, err
	}
	if !e.pending.Load() {
		return true, nil
	}
	e.dev.mu.Lock()
	defer e.dev.mu.Unlock()
	return e.complete(), nil
}

// complete reports whether the last record is complete. The caller holds dev.mu.
func (e *event) complete() bool {
	if e.pending.Load() && e.stream.done > e.number {
		e.pending.Store(false)
	}
	return !e.pending.Load()
}

// Synchronize waits for the last record.
func (e *event) Synchronize(ctx context.Context) error {
	if err := e.usable("Synchronize"); err != nil {
		return err
	}
	if ctx == nil {
		return self.NoContext("Synchronize")
	}
	if !e.pending.Load() {
		return nil
	}
	e.dev.mu.Lock()
	s, n, complete := e.stream, e.number, e.complete()
	e.dev.mu.Unlock()
	if complete {
		return nil
	}
	return s.past(ctx, n)
}

// Timed reports whether the event was made with EventOptions.Timed.
func (e *event) Timed() bool { return e.timed }

// Close releases the event.
func (e *event) Close() error {
	e.closed.Store(true)
	e.dev.opened.Remove(unsafe.Pointer(e))
	return nil
}

// Elapsed returns the time between the completions of two records by the host's clock.
func (d *Device) Elapsed(start, end device.Event) (time.Duration, error) {
	if err := d.usable("Elapsed"); err != nil {
		return 0, err
	}
	var at [2]time.Duration
	for i, x := range [2]device.Event{start, end} {
		e, err := d.own("Elapsed", x)
		if err != nil {
			return 0, err
		}
		d.mu.Lock()
		err = self.CheckElapsed([2]string{"start", "end"}[i], e.timed, e.stream != nil, e.marked && e.complete())
		at[i] = e.at
		d.mu.Unlock()
		if err != nil {
			return 0, err
		}
	}
	return at[1] - at[0], nil
}

// own returns e as an event of d that is not closed. For op "Wait" it accepts other null devices'
// events.
func (d *Device) own(op string, e device.Event) (*event, error) {
	own, err := backend.Event[*event](self, op, e)
	if err == nil && op != "Wait" {
		err = self.CheckOwner(op, own.dev.id, d.id)
	}
	if err != nil {
		return nil, err
	}
	return own, own.usable(op)
}

func (e *event) String() string { return fmt.Sprintf("event of null device %d", e.dev.id) }
