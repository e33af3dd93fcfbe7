package trace

import (
	"context"

	"go.opentelemetry.io/otel"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// none is the detail of what gets no span.
const none = Steps - 1

// detail is what gets a span under ctx: that of the innermost step that runs, or else the tracer's. If it is
// sure to be below need it is none at once, for an atomic load. The context that it returns has the parent.
//
// It is the one guard before everything that makes a span: no recording parent, no span. Tracers have no Enabled yet
// (opentelemetry-go 4831), and even the no-op tracer's Start allocates. A parent that is only a propagated
// span context is not recording.
func (t *Tracer) detail(ctx context.Context, need Detail) (context.Context, Detail) {
	if ctx == nil || t.config.Detail < need && t.allSteps.Load() == 0 || t.silent() {
		return ctx, none
	}
	span := oteltrace.SpanFromContext(ctx)
	if !span.IsRecording() && !span.SpanContext().IsSampled() && !t.leftOut.Load() {
		return ctx, t.detailOfRoot(span)
	}
	ctx, s := inside(ctx)
	if span := oteltrace.SpanFromContext(ctx); !span.IsRecording() {
		return ctx, t.detailOfRoot(span)
	}
	for ; s != nil; s = s.outer {
		if s.profiler.config.Tracer == t && !s.over.Load() {
			return ctx, s.detail
		}
	}
	return ctx, t.config.Detail
}

// detailOfRoot is what gets a span under parent, which is not recording: at All what would be this process's first span of its
// trace, under no parent or one in another process. The sampler says whether it is recorded; of a local parent it has
// said so.
func (t *Tracer) detailOfRoot(parent oteltrace.Span) Detail {
	if c := parent.SpanContext(); t.config.Detail == All && (!c.IsValid() || c.IsRemote()) {
		return All
	}
	return none
}

// inside returns the innermost step that ctx is inside of, nil if there is none, and ctx with the span that it is inside
// of. Steps that are over are passed, and so are their spans: those are open until the device is done, sooner or later.
func inside(ctx context.Context) (context.Context, *Step) {
	s, _ := ctx.Value(stepKey{}).(*Step)
	if s == nil || !s.over.Load() {
		return ctx, s
	}
	span := oteltrace.SpanFromContext(ctx)
	passed := false
	for ; s != nil && s.over.Load(); s = s.outer {
		if span.SpanContext().SpanID() == s.span.SpanContext().SpanID() {
			span, passed = s.around, true
		}
	}
	if passed {
		ctx = oteltrace.ContextWithSpan(ctx, span)
	}
	return ctx, s
}

// silent reports whether t makes nothing, whatever the context says: its provider is the no-op one, or the global one of a
// program that has no SDK, which idle tells, or had none when it was last asked.
func (t *Tracer) silent() bool {
	return t.noop || t.idle.Load() && otel.GetTracerProvider() == t.config.TracerProvider
}

// recording reports whether ctx has a recording span.
func recording(ctx context.Context) bool { return oteltrace.SpanFromContext(ctx).IsRecording() }
