package trace

import (
	"context"
	rtrace "runtime/trace"
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/internal/opened"
	"github.com/cistern-ml/cistern/memcache"
)

// StartStep starts a step with the caller's number. The returned context must be used inside the
// step. It is the parent of the spans and carries the step's memcache.Scope. It also labels
// allocations with the step's number (memcache.WithStep), where 0 means no step: count from 1. The
// step must be ended.
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
		s.inside = stepContext{ctx, s}
		ctx = &s.inside
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

// nextDetail returns the detail of the next step, and whether it is one of Config.AllEvery.
func (t *Tracer) nextDetail() (detail Detail, sampled bool) {
	if n := int64(t.config.AllEvery); n > 0 && (t.steps.Add(1)-1)%n == 0 {
		return All, true
	}
	return t.config.Detail, false
}
