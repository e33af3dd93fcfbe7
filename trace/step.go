package trace

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Step is one training step: a span, if there is a Tracer, and a profile.
type Step struct {
	profiler *Profiler
	number   int64
	ctx      context.Context
	inside   stepContext    // with a Tracer
	span     oteltrace.Span // nil without a Tracer
	detail   Detail
	sampled  bool                  // runs at All because of Config.AllEvery
	outer    *Step                 // the step around it, perhaps of another Tracer
	around   oteltrace.Span        // the span around it
	place    atomic.Pointer[place] // nil: no block needs it
	tied     int64                 // counts.tied at the start
	scope    *memcache.Scope
	meter    *transfer.Meter
	task     goTask
	anchor   *anchor // nil: the device's part gets no span
	began    time.Time
	end      sync.Once
	over     atomic.Bool
	waited   dataWait
	tells    bool             // it reports the holders of the peak
	holders  memcache.Holders // if it reports them, after it has ended

	from, to device.Event // timed; nil: no device time
	ending   func()       // of ProfilerConfig.Starting; nil: it returned none
	kernels  *stepKernels // between the two; nil: kernels are not timed
	passed   bool         // a later event than to is complete; guarded by profiler.drain
	// marking and marked are profiler.marks before and after to was recorded.
	marking, marked int64
	// deviceBegan is on the host's clock; zero: unknown.
	deviceBegan time.Time

	before *Step // the communicator's step when this one began

	// Guarded by the communicator's mu.
	flights     int // its operations that are not complete
	collectives []StepCollective
	replayed    []ReplayedCollective

	// Guarded by profiler.mu.
	failed   bool
	err      error // of the first Fail
	complete bool
	profile  StepProfile
}

type stepKey struct{}

// stepContext is the context inside of a step, and a part of it, so that it needs no allocation.
type stepContext struct {
	context.Context
	step *Step
}

// Value returns the step for its key.
func (c *stepContext) Value(key any) any {
	if key == (stepKey{}) {
		return c.step
	}
	return c.Context.Value(key)
}

// The names of the spans of a step and of its device's part.
const (
	stepSpan   = "cistern.step"
	deviceSpan = "cistern.step.device"
)

// Profile returns the profile with the figures known so far; before End there are none.
func (s *Step) Profile() StepProfile {
	if s == nil {
		return StepProfile{}
	}
	s.profiler.mu.Lock()
	defer s.profiler.mu.Unlock()
	return s.profile
}

// Fail records err as the step's failure, in its profile and on its span; nil does nothing. The
// step must still be ended. A Fail after End still counts. But if the span has already ended, as it
// has without a compute stream, Fail can't record it there, and the next Flush returns err.
func (s *Step) Fail(err error) {
	if s == nil || err == nil {
		return
	}
	if s.span != nil {
		recordError(s.span, err)
	}
	p := s.profiler
	p.mu.Lock()
	defer p.mu.Unlock()
	again := s.failed
	if s.err == nil {
		s.err = err
	}
	s.failed, s.profile.Failed = true, s.over.Load()
	if !s.complete {
		return
	}
	if !again {
		p.summary.fail(&s.profile)
	}
	if p.err == nil && s.span != nil && s.span.SpanContext().IsSampled() {
		p.err = fmt.Errorf("trace: Fail of step %d after its span had ended: %w", s.number, err)
	}
}

// String returns a text such as "step 3".
func (s *Step) String() string { return fmt.Sprintf("step %d", s.number) }
