package trace

import (
	"context"
	"errors"
	"fmt"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// mark records a timed event on the compute stream. It returns nil without a stream, after Close,
// and if that failed, which Flush reports. A step takes two events and returns them after reading.
func (p *Profiler) mark() device.Event {
	if p.config.Stream == nil || p.closed.Load() {
		return nil
	}
	e, err := p.events.Get()
	if err != nil {
		p.keep(fmt.Errorf("trace: making a timed event: %w", err))
		return nil
	}
	if err := p.config.Stream.Record(e); err != nil {
		p.keep(fmt.Errorf("trace: recording a timed event: %w", err))
		p.discard(e)
		return nil
	}
	return e
}

func (p *Profiler) discard(e device.Event) {
	if e == nil {
		return
	}
	if err := p.events.Put(e); err != nil {
		p.keep(err)
	}
}

// takeDeviceTime reads the step's events once. It returns false if the step has to wait, with an
// error if the context of done was cancelled. Any other error leaves the step without a device time
// or without its place on the host's clock. The caller holds drain.
//
// The reads are hidden from the race detector. Otherwise they would order the program's own
// accesses, and an event that is missing in the program would go unnoticed.
func (s *Step) takeDeviceTime(done func(device.Event) (bool, error)) (bool, error) {
	p := s.profiler
	if s.from == nil || s.to == nil {
		p.discard(s.from)
		return true, nil
	}
	known := knowledge{passed: s.passed, reached: s.anchor != nil && s.anchor.reached}
	r, err := race.Quietly(func() (reading, error) { return s.read(known, done) })
	if r.reached {
		s.anchor.reached = true
	}
	switch {
	case errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded):
		return false, err
	case err != nil && !r.timed:
		p.keep(fmt.Errorf("trace: the device time of step %d: %w", s.number, err))
	case !r.done:
		return false, nil
	default:
		busy, busyTimed := r.busy, p.busy != nil
		if !busyTimed {
			busy, busyTimed = p.kernels.busyTime(s, r.took)
		}
		p.mu.Lock()
		s.profile.DeviceTime, s.profile.DeviceTimed = r.took, true
		s.profile.BusyTime, s.profile.BusyTimed = busy, busyTimed
		p.mu.Unlock()
		if err != nil {
			p.keep(fmt.Errorf("trace: placing the device time of step %d: %w", s.number, err))
		} else if s.anchor != nil {
			s.deviceBegan = s.began
			// The step's work can't begin before it is queued.
			if at := r.began; at.After(s.began) {
				s.deviceBegan = at
			}
		}
	}
	p.discard(s.from)
	p.discard(s.to)
	p.kernels.giveBack(s)
	return true, nil
}

// knowledge is the known state of a step's events and of its anchor's event.
type knowledge struct{ passed, reached bool }

// reading is the result of reading a step's events.
type reading struct {
	reached     bool // the anchor's event is complete
	done, timed bool
	took, busy  time.Duration // if timed
	began       time.Time     // on the host's clock; zero without an anchor
}

// read reads the events. If it returns an error together with a reading that is timed, only the
// place on the host's clock is missing. It communicates through arguments and results only, because
// the race detector does not see the order of other accesses around Quietly.
func (s *Step) read(known knowledge, done func(device.Event) (bool, error)) (r reading, err error) {
	p, dev := s.profiler, s.profiler.config.Cache.Device()
	if r.done = known.passed; !r.done {
		if r.done, err = done(s.to); !r.done || err != nil {
			return r, err
		}
	}
	if r.took, err = dev.Elapsed(s.from, s.to); err == nil && p.busy != nil {
		r.busy, err = p.busy.BusyTime(s.from, s.to)
	}
	if r.timed = err == nil; err != nil || s.anchor == nil {
		return r, err
	}
	if r.reached = known.reached; !r.reached {
		if r.reached, err = done(s.anchor.event); err != nil || !r.reached {
			r.done = err != nil
			return r, err
		}
	}
	since, err := dev.Elapsed(s.anchor.event, s.from)
	r.began = s.anchor.at.Add(since)
	return r, err
}

// takeAnchor takes the anchor that places the device's part of the step on the host's clock.
func (s *Step) takeAnchor() {
	p := s.profiler
	var err error
	if s.anchor, err = p.clock.take(p.config.Cache.Device()); err != nil {
		p.keep(fmt.Errorf("trace: placing the device time of step %d: %w", s.number, err))
	}
}

// tell sets the profile's attributes on the step's span, and makes the span of the device's part.
// The caller holds drain.
func (s *Step) tell(ctx context.Context, profile *StepProfile) {
	p, t := s.profiler, s.profiler.config.Tracer
	a := append(p.scratch[:0], p.describe...)
	if profile.DeviceTimed {
		a = append(a, KeyStepDeviceTime.Float64(profile.DeviceTime.Seconds()))
		if profile.BusyTimed {
			a = append(a, KeyStepDeviceBusy.Float64(profile.BusyTime.Seconds()))
		}
	}
	common := len(a)
	a = profile.attributes(a)
	s.span.SetAttributes(a...)
	p.scratch = a
	if s.deviceBegan.IsZero() {
		return
	}
	_, part := t.start(ctx, deviceSpan, oteltrace.WithTimestamp(s.deviceBegan))
	part.SetAttributes(append(a[:common], KeyStep.Int64(s.number), KeyStream.Int64(int64(p.config.Stream.ID())))...)
	t.end(part, nil, oteltrace.WithTimestamp(s.deviceBegan.Add(profile.DeviceTime)))
}
