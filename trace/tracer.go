package trace

import (
	"context"
	"fmt"
	"reflect"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// ScopeName is the instrumentation scope of every span and metric of this package.
const ScopeName = "github.com/cistern-ml/cistern/trace"

// Tracer makes spans and metrics of caches, pools and steps. It is safe for concurrent use. A nil
// *Tracer and a zero Tracer observe nothing.
type Tracer struct {
	config   Config
	tracer   oteltrace.Tracer
	meter    metric.Meter
	logger   log.Logger
	noop     bool // the provider is OpenTelemetry's no-op
	rank     []attribute.KeyValue
	idle     atomic.Bool  // the provider returned a span that is not an SDK's
	leftOut  atomic.Bool  // a step was sampled out, and the span around it was not
	steps    atomic.Int64 // started, to sample them
	allSteps atomic.Int64 // running at All because they were sampled
	counts   counts
	blocks   blockSpans

	allocDuration, copyDuration durations
	stepMetrics                 stepMetrics
	collectiveMetrics           collectiveMetrics

	mu      sync.Mutex
	closed  bool
	watched map[any]*watch // by *memcache.Cache, *transfer.Pool or *offloadSeries
	memory  *memoryMetrics // made by the first Watch
	copies  *transferMetrics

	offloads *offloadMetrics
}

// off reports whether t observes nothing.
func (t *Tracer) off() bool { return t == nil || t.tracer == nil }

// start begins a span. Its caller has asked [Tracer.detail], or the span is a step's.
func (t *Tracer) start(ctx context.Context, name string, options ...oteltrace.SpanStartOption) (context.Context, oteltrace.Span) {
	ctx, span := t.tracer.Start(ctx, name, options...)
	if span.IsRecording() {
		t.counts.started.Add(1)
		if t.rank != nil {
			span.SetAttributes(t.rank...)
		}
	} else {
		t.counts.sampledOut.Add(1)
		// The span of an SDK has a valid, local context even if it is not sampled.
		if c := span.SpanContext(); (!c.IsValid() || c.IsRemote()) && !t.idle.Load() {
			t.idle.Store(reflect.TypeOf(t.config.TracerProvider).Comparable()) // silent compares it
		}
	}
	return ctx, span
}

// end ends a span that start began.
func (t *Tracer) end(span oteltrace.Span, err error, options ...oteltrace.SpanEndOption) {
	if !span.IsRecording() {
		return
	}
	if err != nil {
		recordError(span, err)
	}
	// Before a processor sees the span, so that no backend has more than Ended.
	t.counts.ended.Add(1)
	span.End(options...)
}

// String returns the detail and the number of spans.
func (t *Tracer) String() string {
	c := t.Counts()
	return fmt.Sprintf("tracer of detail %v: %d spans started, %d ended", t.config.Detail, c.Started, c.Ended)
}
