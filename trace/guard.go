package trace

import (
	"context"

	"go.opentelemetry.io/otel"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// none is the detail of a context in which nothing gets a span.
const none = Steps - 1

// detail returns the detail under ctx: that of the innermost running step, or else the tracer's. A
// detail that is certain to be below need is returned as none at once, for the cost of an atomic
// load. The returned context has the parent of the span.
//
// It guards everything that makes a span: without a recording parent there is no span. It exists
// because tracers have no Enabled yet (opentelemetry-go 4831), and even the no-op tracer's Start
// allocates. A propagated span context is not a recording parent.
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

// detailOfRoot returns the detail under parent, which is not recording. It is All if the span would
// be this process's first span of its trace, without a parent or under one in another process, and
// the tracer's detail is All. Whether it is recorded is then the sampler's decision; for a local
// parent the sampler has already decided.
func (t *Tracer) detailOfRoot(parent oteltrace.Span) Detail {
	if c := parent.SpanContext(); t.config.Detail == All && (!c.IsValid() || c.IsRemote()) {
		return All
	}
	return none
}

// inside returns the innermost open step around ctx, nil if there is none, and ctx with the span
// around it. It skips steps that have ended and their spans, which stay open until the device has
// finished.
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

// silent reports whether t makes no spans in any context. Its provider is OpenTelemetry's no-op, or
// the global one of a program without an SDK, which idle has detected.
func (t *Tracer) silent() bool {
	return t.noop || t.idle.Load() && otel.GetTracerProvider() == t.config.TracerProvider
}

// recording reports whether ctx has a recording span.
func recording(ctx context.Context) bool { return oteltrace.SpanFromContext(ctx).IsRecording() }
