package trace

import (
	"context"
	"sort"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// poll completes the steps whose events are done. If another goroutine holds drain, poll waits for
// it if wait is set. Otherwise poll leaves the steps to that goroutine, which looks again after
// releasing drain, so that no step is forgotten.
func (p *Profiler) poll(wait bool, done func(device.Event) (bool, error)) {
	for {
		select {
		case p.drain <- struct{}{}:
		default:
			if !wait {
				return
			}
			p.drain <- struct{}{}
		}
		empty, _ := p.complete(done) // an error is kept for Flush
		if !empty || p.pending() == 0 {
			return
		}
	}
}

// complete completes the open steps in order, up to the first whose event is not done, and reports
// whether none is left. The caller has acquired p.drain; complete releases it, even if OnProfile
// panics. If done fails because of its context, complete returns that error and the step stays
// open.
func (p *Profiler) complete(done func(device.Event) (bool, error)) (empty bool, err error) {
	defer func() { <-p.drain }()
	for asked := 0; ; {
		p.mu.Lock()
		if len(p.open) == 0 {
			p.mu.Unlock()
			return true, nil
		}
		s := p.open[0]
		p.mu.Unlock()
		if asked--; asked < 0 {
			asked = p.pass() - 1
		}
		if ok, err := p.config.Communicator.finished(s, done); !ok {
			return false, err
		}
		if ok, err := s.takeDeviceTime(done); !ok {
			return false, err
		}
		var peak *StepPeak
		if s.profile.Peak == nil { // nothing else writes it after the step's end
			peak = s.peak()
		}
		collectives := p.config.Communicator.of(s)
		p.mu.Lock()
		if peak != nil {
			s.profile.Peak = peak
		}
		s.profile.Collectives, s.profile.CollectiveTime = collectives, 0
		for _, x := range collectives {
			s.profile.CollectiveTime += x.Time
		}
		p.open[0] = nil
		p.open = p.open[1:]
		p.summary.add(&s.profile)
		s.complete = true
		profile := s.profile
		p.mu.Unlock()
		s.close(&profile)
	}
}

// mostAsked is the most steps that pass examines.
const mostAsked = 64

// pass marks the finished steps among the first open ones, with a binary search for the last
// finished one. It returns the number of steps that it examined. The caller holds drain. The
// queries are hidden from the race detector.
func (p *Profiler) pass() int {
	p.mu.Lock()
	open := p.open[:min(len(p.open), mostAsked)] // elements change only under drain
	p.mu.Unlock()
	if len(open) < 2 {
		return len(open)
	}
	// A copy, because the race detector does not see that Quietly is over before open changes.
	var events [mostAsked]device.Event
	for i, s := range open {
		events[i] = s.to
	}
	n, _ := race.Quietly(func() (int, error) {
		return sort.Search(len(open), func(i int) bool {
			if events[i] == nil {
				return true
			}
			done, err := events[i].Query()
			return !done || err != nil
		}), nil
	})
	for i := range n {
		open[i].passed = i == n-1 || open[i].marked <= open[n-1].marking
	}
	return len(open)
}

// close ends the step's span at the time of its End, with the device's part below it, and passes
// its profile to OnProfile.
func (s *Step) close(profile *StepProfile) {
	p := s.profiler
	if t := p.config.Tracer; t != nil {
		ctx := oteltrace.ContextWithSpan(context.Background(), s.span)
		t.stepMetrics.record(ctx, s, profile)
		if s.span.IsRecording() {
			s.tell(ctx, profile)
		}
		if s.anchor != nil {
			if err := p.clock.give(s.anchor); err != nil {
				p.keep(err)
			}
		}
		t.end(s.span, nil, oteltrace.WithTimestamp(profile.Start.Add(profile.HostTime)))
	}
	if p.config.OnProfile != nil {
		p.config.OnProfile(*profile)
	}
}
