package trace

import (
	"context"
	"sort"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// poll completes the steps that the device is done with, as done says. If another goroutine is at
// it, poll waits for it or leaves it to that one, which looks again after it has let go of drain,
// so that no step is forgotten.
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

// complete completes the open steps in order, up to the first that done says no to, and reports
// whether it came to the end of them. The caller has taken p.drain, and complete gives it back,
// also when OnProfile panics. An error of done is returned if the device may still answer; then the
// step stays open.
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
		if s.profile.Peak == nil { // nobody else writes it once the step has ended
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

// mostAsked is how many steps pass looks at.
const mostAsked = 64

// pass finds out which of several steps the device is done with, in few questions, and returns how
// many it looked at. The caller has drain. The race detector does not see that either.
func (p *Profiler) pass() int {
	p.mu.Lock()
	open := p.open[:min(len(p.open), mostAsked)] // whose elements change with drain alone
	p.mu.Unlock()
	if len(open) < 2 {
		return len(open)
	}
	var events [mostAsked]device.Event // the detector does not see that Quietly is over before open changes
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

// close ends the step's span, at the time of its End, with the device's part below it, and hands
// its profile out.
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
