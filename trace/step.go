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
	tells    bool             // who held the peak
	holders  memcache.Holders // if it tells, and once it has ended

	from, to device.Event // timed; nil: no device time
	ending   func()       // of ProfilerConfig.Starting; nil: it returned none
	kernels  *stepKernels // between the two; nil: nobody times them
	passed   bool         // an event behind to is complete; guarded by profiler.drain
	// marking and marked are profiler.marks before and after to was recorded.
	marking, marked int64
	deviceBegan     time.Time // by the host's clock, once there is a device time; zero: nobody knows

	before *Step // of the communicator, when this one began

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

// stepContext is the context inside of a step, of which it is a part.
type stepContext struct {
	context.Context
	step *Step
}

// Value is context.Context's.
func (c *stepContext) Value(key any) any {
	if key == (stepKey{}) {
		return c.step
	}
	return c.Context.Value(key)
}

// The names of the spans of a step, and of the device's part of it.
const (
	stepSpan   = "cistern.step"
	deviceSpan = "cistern.step.device"
)

// Profile returns the profile with what is known by now; before End that is nothing.
func (s *Step) Profile() StepProfile {
	if s == nil {
		return StepProfile{}
	}
	s.profiler.mu.Lock()
	defer s.profiler.mu.Unlock()
	return s.profile
}

// Fail records that the step failed with err, in its profile and on its span; nil does nothing. The step is still to be
// ended. A Fail after End still counts. Only if the span has ended by then, which without a compute stream it has,
// it can't be told any more: the next Flush returns err.
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

// String is such as "step 3".
func (s *Step) String() string { return fmt.Sprintf("step %d", s.number) }
