package trace

import (
	"context"
	"errors"
	"fmt"
	rtrace "runtime/trace"
	"sync"
	"sync/atomic"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Step is one training step: a span, if there is a Tracer, and a profile.
type Step struct {
	profiler *Profiler
	number   int64
	ctx      context.Context
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

// The names of the spans of a step, and of the device's part of it.
const (
	stepSpan   = "cistern.step"
	deviceSpan = "cistern.step.device"
)

// errPanicked is the class of a step's failure by a panic.
var errPanicked = errors.New("the step panicked")

// StartStep starts a step with the caller's number. The context that it returns is to be used inside the
// step: it is the parent of the spans and carries the step's memcache.Scope, and its number as the label of what is allocated
// (memcache.WithStep), for which 0 is no step: count from 1. The step must be ended.
func (p *Profiler) StartStep(ctx context.Context, number int64) (context.Context, *Step) {
	if p.off() {
		return ctx, nil
	}
	s := &Step{profiler: p, number: number, began: time.Now()}
	if ctx == nil {
		ctx = context.Background()
	}
	if rtrace.IsEnabled() {
		ctx, s.task.Task = rtrace.NewTask(ctx, stepSpan)
		s.task.opened = opened.New("task of a step", p.config.Cache.Device().ID())
		rtrace.Logf(ctx, string(KeyStep), "%d", number)
	}
	if t := p.config.Tracer; t != nil {
		s.detail, s.sampled = t.nextDetail()
		ctx, s.outer = inside(ctx)
		s.around = oteltrace.SpanFromContext(ctx)
		s.tied = t.counts.tied.Load()
		ctx = s.startSpan(ctx)
		ctx = context.WithValue(ctx, stepKey{}, s)
		if s.sampled = s.sampled && s.span.IsRecording(); s.sampled {
			t.allSteps.Add(1)
		}
	}
	if p.config.Pool != nil {
		ctx, s.meter = p.config.Pool.Meter(ctx)
	}
	ctx, s.scope = p.config.Cache.Scope(memcache.WithStep(ctx, number), "step")
	s.ctx = ctx
	launches := p.kernels.beforeStart()
	if s.from = p.mark(); s.from != nil && s.span != nil && s.span.IsRecording() {
		s.takeAnchor()
	}
	p.kernels.start(s, launches)
	if starting := p.config.Starting; starting != nil && s.from != nil {
		s.ending = starting(p.config.Stream, number)
	}
	if c := p.config.Communicator; c != nil {
		s.before = c.step.Swap(s)
	}
	return ctx, s
}

// nextDetail is the detail of the next step, and whether it is one of Config.AllEvery.
func (t *Tracer) nextDetail() (detail Detail, sampled bool) {
	if n := int64(t.config.AllEvery); n > 0 && (t.steps.Add(1)-1)%n == 0 {
		return All, true
	}
	return t.config.Detail, false
}

// End ends the step and returns its profile. With a Stream, and without ProfilerConfig.Synchronize, the device time and who
// held the peak are still missing: a goroutine of the profiler, or Flush, fills them in when the device is done, see
// Profile, and only then ends the span, at the time of this End. A second End returns the profile. Ending a nil Step does nothing.
//
// Deferred by itself ("defer step.End()") it sees a panic: the step has failed, and the panic goes on.
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
		_ = s.to.Synchronize(s.ctx) // an error comes again when the device time is read
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

// leave ends what the communicator counts for the step, and reports whether there is anything that it has counted.
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

// measure is the profile of the step, which took took, but for the device time.
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
	r.Replays = s.replays()
	r.ReplayedCollectives = s.profiler.config.Communicator.replayedIn(s)
	_, r.H2DBytes = s.meter.Count(transfer.OpH2D)
	_, r.D2HBytes = s.meter.Count(transfer.OpD2H)
	return r
}

// count counts what got no span.
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

// String is such as "step 3".
func (s *Step) String() string { return fmt.Sprintf("step %d", s.number) }
