package timeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/trace"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is. It is
// [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

// Timeline writes events to a file. It is safe for concurrent use. It is on unless SetEnabled
// switches it off.
type Timeline struct {
	off     atomic.Bool
	start   time.Time // time 0 of the file
	file    *file
	kernels kernels

	// mu guards the fields below and the order of the events in the file.
	mu      sync.Mutex
	lanes   lanes
	layers  layers
	open    map[uint64][]*call // by stream
	flows   int64              // arrows from operations to kernels
	periods []period           // in which it was on, the latest ones
}

// period is a time in which a timeline was on; to is zero while it is.
type period struct{ from, to time.Time }

// mostPeriods is the number of periods that are kept, for steps that are reported late.
const mostPeriods = 1000

// New makes a timeline, which begins now. One goroutine writes to w, until Close. The caller closes
// w.
func New(w io.Writer) (*Timeline, error) {
	if w == nil {
		return nil, fmt.Errorf("timeline: New: %w: the writer is nil", ErrInvalid)
	}
	t := &Timeline{start: time.Now(), file: newFile(w), open: make(map[uint64][]*call)}
	t.lanes.file, t.kernels.drain, t.kernels.renewal = t.file, make(chan struct{}, 1), renewal
	t.kernels.closing, t.kernels.stop = context.WithCancel(context.Background())
	t.mu.Lock()
	defer t.mu.Unlock()
	t.periods = []period{{from: t.start}}
	at := t.lanes.of(program, "steps").fixed(0)
	t.file.add(event{phase: "i", at: at, name: "start", args: []arg{text("time", t.start.Format(time.RFC3339Nano))}})
	return t, nil
}

// SetEnabled switches the timeline on or off, for example for some steps. While it is off nothing
// is written and kernels cost nothing. Allocated bytes are still counted, so that the counters are
// right later. Operations that began while it was on are written, and so are steps that overlap a
// time in which it was on, even if they are reported later.
func (t *Timeline) SetEnabled(on bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if on == !t.off.Load() {
		return
	}
	t.off.Store(!on)
	now := time.Now()
	if !on {
		t.periods[len(t.periods)-1].to = now
		return
	}
	if len(t.periods) >= mostPeriods {
		t.periods = slices.Delete(t.periods, 0, mostPeriods/2)
	}
	t.periods = append(t.periods, period{from: now})
}

// sees reports whether the timeline was on during a part of a step. t.mu is held.
func (t *Timeline) sees(p *trace.StepProfile) bool {
	end := p.Start.Add(p.HostTime)
	return slices.ContainsFunc(t.periods, func(on period) bool {
		return !on.from.After(end) && (on.to.IsZero() || on.to.After(p.Start))
	})
}

// Step writes a step with its figures, as [trace.ProfilerConfig].OnProfile, if the timeline was on
// during a part of it. It also writes the kernels that are complete.
func (t *Timeline) Step(p trace.StepProfile) {
	t.kernels.drainNow(t)
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.sees(&p) {
		return
	}
	args := []arg{
		number("step", p.Step), number("allocated at the start", p.AllocatedStart), number("allocated at the end", p.AllocatedEnd),
		number("allocated at the peak", p.AllocatedPeak), number("reserved at the peak", p.ReservedPeak), number("allocations", p.Allocations),
		number("driver allocations", p.DriverAllocs), number("copied to the device", p.H2DBytes), number("copied to the host", p.D2HBytes),
	}
	if p.DeviceTimed {
		args = append(args, number("device time in ns", p.DeviceTime.Nanoseconds()))
	}
	name := fmt.Sprintf("step %d", p.Step)
	if p.Failed {
		name += " (failed)"
	}
	t.span(program, "steps", span{name: name, kind: "step", from: t.since(p.Start), to: t.since(p.Start.Add(p.HostTime)), args: args})
	t.file.wakeUp()
}

// since returns the time of a moment in the file.
func (t *Timeline) since(at time.Time) time.Duration { return max(0, at.Sub(t.start)) }

func (t *Timeline) now() time.Duration { return time.Since(t.start) }

// span writes a span to a lane of the group that is free at its time. t.mu is held.
func (t *Timeline) span(process, group string, s span) {
	t.file.add(s.event(t.lanes.of(process, group).free(s.from, s.to)))
}

// Flush waits for the kernels launched so far, and until everything is written. If ctx ends, Flush
// stops waiting, and the next Flush continues. Flush returns the first error of a kernel's time
// since the last Flush; that kernel is left out. After an error of the writer nothing more is
// written, and all later Flushes return the error, too.
func (t *Timeline) Flush(ctx context.Context) error {
	if ctx == nil {
		return fmt.Errorf("timeline: Flush: %w: the context is nil; use context.Background()", ErrInvalid)
	}
	err := errors.Join(t.kernels.wait(ctx, t), t.file.flush(ctx))
	if err != nil {
		return fmt.Errorf("timeline: Flush: %w", err)
	}
	return nil
}

// Close waits for the kernels launched so far, writes everything and ends the file. Later events
// are lost. It must be called before the devices close. It returns errors as Flush does, and an
// error with the number of dropped events if the writer was too slow. It is idempotent: a second
// Close returns this error and the writer's again.
func (t *Timeline) Close() error {
	t.SetEnabled(false)
	err := t.kernels.close(t)
	t.mu.Lock()
	t.layers.close(t)
	t.mu.Unlock()
	if err = errors.Join(err, t.file.close()); err != nil {
		return fmt.Errorf("timeline: Close: %w", err)
	}
	return nil
}

// String returns "timeline, on" or "timeline, off".
func (t *Timeline) String() string {
	if t.off.Load() {
		return "timeline, off"
	}
	return "timeline, on"
}
