package trace

import (
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// End ends the step and returns its profile. With a Stream, and without ProfilerConfig.Synchronize,
// the profile has no device time and no holders of the peak yet. A goroutine of the profiler, or
// Flush, adds them when the device has finished, see Profile. Only then does the span end, at the
// time of this End. A second End returns the profile. Ending a nil Step does nothing.
//
// Deferred directly ("defer step.End()"), End recovers a panic, records it as the step's failure,
// and panics again.
func (s *Step) End() StepProfile {
	if s == nil {
		return StepProfile{}
	}
	if r := recover(); r != nil {
		defer panic(r)
		err, ok := r.(error)
		if !ok {
			err = fmt.Errorf("%v", r)
		}
		s.Fail(fmt.Errorf("trace: %w: %w", errPanicked, err))
	}
	s.end.Do(s.finish)
	return s.Profile()
}

func (s *Step) finish() {
	p := s.profiler
	s.over.Store(true)
	s.place.Load().finish()
	flying := s.leave()
	if s.ending != nil {
		s.ending()
	}
	launches := p.kernels.beforeEnd(s)
	if s.from != nil {
		s.marking = p.marks.Load()
		s.to = p.mark()
		s.marked = p.marks.Add(1)
	}
	p.kernels.end(s, launches)
	if p.config.Synchronize && s.to != nil {
		_ = s.to.Synchronize(s.ctx) // an error recurs when the device time is read
		if s.anchor != nil {
			_ = s.anchor.event.Synchronize(s.ctx)
		}
	}
	if p.config.Synchronize && flying {
		_, _ = p.config.Communicator.finished(s, func(e device.Event) (bool, error) { return true, e.Synchronize(s.ctx) })
	}
	r := s.measure(time.Since(s.began))
	if s.task.Task != nil {
		s.task.End()
	}
	if s.span != nil {
		s.count(&r)
	}
	later := (s.to != nil || flying) && !p.config.Synchronize
	if !later {
		r.Peak = s.peak()
	}
	p.mu.Lock()
	r.Failed = s.failed
	s.profile = r
	p.open = append(p.open, s)
	later = later && p.completesLater()
	crowded := len(p.open) >= mostOpen
	p.mu.Unlock()
	if !later || crowded {
		p.poll(p.config.Synchronize || crowded || p.config.Stream != nil, device.Event.Query)
	}
}

// leave removes the step from the communicator, and reports whether it has incomplete operations.
func (s *Step) leave() (flying bool) {
	c := s.profiler.config.Communicator
	if c == nil {
		return false
	}
	outer := s.before
	for outer != nil && outer.over.Load() {
		outer = outer.before
	}
	c.step.CompareAndSwap(s, outer)
	c.mu.Lock()
	defer c.mu.Unlock()
	return s.flights > 0
}

// measure returns the step's profile without its device time; took is the step's wall time.
func (s *Step) measure(took time.Duration) StepProfile {
	window, own := s.endScope(), s.scope.Own()
	rank, size := s.profiler.config.ranks()
	r := StepProfile{
		Step:           s.number,
		Communicator:   s.profiler.config.Communicator.name(),
		Rank:           rank,
		WorldSize:      size,
		Start:          s.began,
		AllocatedStart: window.Allocated.Start,
		AllocatedEnd:   window.Allocated.Current,
		AllocatedPeak:  window.Allocated.Peak,
		RequestedPeak:  window.Requested.Peak,
		Reserved:       window.Reserved.Current,
		ReservedPeak:   window.Reserved.Peak,
		GraphBytes:     window.GraphBytes,
		Allocations:    window.Allocations,
		Hits:           window.Hits,
		Misses:         window.Misses,
		DriverAllocs:   window.DriverAllocs,
		Retries:        window.Retries,
		OutOfMemory:    window.OutOfMemory,
		Frees:          window.Frees,
		OwnPeak:        own.Peak,
		OwnLive:        own.Live,
		OwnAllocations: own.Allocations,
		HostTime:       took,
	}
	if s.span != nil && s.span.SpanContext().IsSampled() {
		r.TraceID = s.span.SpanContext().TraceID().String()
	}
	r.Replays = s.replays()
	r.ReplayedCollectives = s.profiler.config.Communicator.replayedIn(s)
	_, r.H2DBytes = s.meter.Count(transfer.OpH2D)
	_, r.D2HBytes = s.meter.Count(transfer.OpD2H)
	return r
}

// count updates the counters of sampled steps and of skipped spans.
func (s *Step) count(r *StepProfile) {
	t := s.profiler.config.Tracer
	if s.sampled {
		t.allSteps.Add(-1)
	}
	if !s.span.IsRecording() {
		return
	}
	if s.detail < All {
		tied := t.counts.tied.Load() - s.tied
		t.counts.skipped.Add(max(0, r.Allocations+r.Frees-tied))
	}
}
