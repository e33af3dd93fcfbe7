package trace

import (
	"context"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// recording is the one guard before everything that makes a span: no recording parent, no span. Tracers have
// no Enabled yet (opentelemetry-go 4831), and even the no-op tracer's Start allocates. A parent that is only
// a propagated span context is not recording.
func recording(ctx context.Context) bool { return oteltrace.SpanFromContext(ctx).IsRecording() }

type stepKey struct{}

// none is the detail without a recording parent.
const none = Steps - 1

// detail is what gets a span under ctx: that of the step while it runs, or else the tracer's. If it is sure
// to be below need it is none at once, for an atomic load.
func (t *Tracer) detail(ctx context.Context, need Detail) Detail {
	if t.config.Detail < need && t.allSteps.Load() == 0 {
		return none
	}
	if ctx == nil || !recording(ctx) {
		return none
	}
	if s, ok := ctx.Value(stepKey{}).(*Step); ok && s.profiler.config.Tracer == t && !s.over.Load() {
		return s.detail
	}
	return t.config.Detail
}
