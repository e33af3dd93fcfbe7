package trace

import (
	"context"

	"go.opentelemetry.io/otel"
	oteltrace "go.opentelemetry.io/otel/trace"
)

type stepKey struct{}

// none is the detail of what gets no span.
const none = Steps - 1

// detail is what gets a span under ctx: that of the innermost step that runs, or else the tracer's. If it is
// sure to be below need it is none at once, for an atomic load.
//
// It is the one guard before everything that makes a span: no recording parent, no span. Tracers have no Enabled yet
// (opentelemetry-go 4831), and even the no-op tracer's Start allocates. A parent that is only a propagated
// span context is not recording.
func (t *Tracer) detail(ctx context.Context, need Detail) Detail {
	if ctx == nil || t.config.Detail < need && t.allSteps.Load() == 0 || t.silent() {
		return none
	}
	if span := oteltrace.SpanFromContext(ctx); !span.IsRecording() {
		if t.config.Detail == All && startsTrace(span.SpanContext()) {
			return All
		}
		return none
	}
	s, _ := ctx.Value(stepKey{}).(*Step)
	if s = s.running(t); s != nil {
		return s.detail
	}
	return t.config.Detail
}

// silent reports whether t makes nothing, whatever the context says: its provider is the no-op one, or the global one of a
// program that has no SDK, which idle tells, or had none when it was last asked.
func (t *Tracer) silent() bool {
	return t.noop || t.idle.Load() && otel.GetTracerProvider() == t.config.TracerProvider
}

// recording reports whether ctx has a recording span.
func recording(ctx context.Context) bool { return oteltrace.SpanFromContext(ctx).IsRecording() }

// startsTrace reports whether a span under parent would be this process's first of its trace: it has no parent, or one in
// another process. Whether it is recorded is for the sampler to say, where under a local span that said already.
func startsTrace(parent oteltrace.SpanContext) bool { return !parent.IsValid() || parent.IsRemote() }
