package trace

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// ScopeName is the instrumentation scope of every span and metric of this package.
const ScopeName = "github.com/cistern-ml/cistern/trace"

// Tracer makes spans and metrics of caches, pools and steps. It is safe for concurrent use. A nil *Tracer and
// one that New did not make observe nothing.
type Tracer struct {
	config   Config
	tracer   oteltrace.Tracer
	meter    metric.Meter
	logger   log.Logger
	noop     bool // the provider is OpenTelemetry's no-op
	rank     []attribute.KeyValue
	idle     atomic.Bool  // the provider gave a span that is none
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

// New makes a Tracer. A wrong Config is an error that wraps [ErrInvalid]; so is a meter that refuses the
// instruments an error.
func New(config Config) (*Tracer, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	if config.TracerProvider == nil {
		config.TracerProvider = otel.GetTracerProvider()
	}
	if config.MeterProvider == nil {
		config.MeterProvider = otel.GetMeterProvider()
	}
	if config.LoggerProvider == nil {
		config.LoggerProvider = otel.GetLoggerProvider()
	}
	t := &Tracer{
		config: config,
		rank:   rankOf(config.Rank, config.WorldSize),
		tracer: config.TracerProvider.Tracer(ScopeName,
			oteltrace.WithInstrumentationVersion(version()), oteltrace.WithSchemaURL(semconv.SchemaURL)),
		meter: config.MeterProvider.Meter(ScopeName,
			metric.WithInstrumentationVersion(version()), metric.WithSchemaURL(semconv.SchemaURL)),
		logger: config.LoggerProvider.Logger(ScopeName,
			log.WithInstrumentationVersion(version()), log.WithSchemaURL(semconv.SchemaURL)),
		watched: make(map[any]*watch),
	}
	_, t.noop = config.TracerProvider.(nooptrace.TracerProvider)
	var err1, err2, err3, err4 error
	t.allocDuration, err1 = newDurations(t.meter, "cistern.device.allocation.duration",
		"Time that the driver takes to make a segment.", KeyPool, t.rank)
	t.copyDuration, err2 = newDurations(t.meter, "cistern.transfer.duration",
		"Time from the queueing of a copy or kernel to its completion, waiting in the stream included.", KeyOperation, t.rank)
	t.stepMetrics, err3 = newStepMetrics(t.meter)
	t.collectiveMetrics, err4 = newCollectiveMetrics(t.meter)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("trace: New: %w", err)
	}
	return t, nil
}

// off reports whether t observes nothing.
func (t *Tracer) off() bool { return t == nil || t.tracer == nil }

// Close stops watching every cache and pool. Spans that are open stay so until their operations end. What the
// meter does not let go is for the next Close; otherwise a second Close does nothing. Providers belong to the caller.
func (t *Tracer) Close() error {
	if t.off() {
		return nil
	}
	t.mu.Lock()
	t.closed = true
	watched := slices.Collect(maps.Values(t.watched))
	t.mu.Unlock()
	var errs []error
	for _, w := range watched {
		errs = append(errs, w.stop())
	}
	return errors.Join(errs...)
}

// start begins a span. Call it only when the guard said yes, or for a step.
func (t *Tracer) start(ctx context.Context, name string, options ...oteltrace.SpanStartOption) (context.Context, oteltrace.Span) {
	ctx, span := t.tracer.Start(ctx, name, options...)
	if span.IsRecording() {
		t.counts.started.Add(1)
		if t.rank != nil {
			span.SetAttributes(t.rank...)
		}
	} else {
		t.counts.sampledOut.Add(1)
		if c := span.SpanContext(); (!c.IsValid() || c.IsRemote()) && !t.idle.Load() { // a span of an SDK is one of this process
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
	t.counts.ended.Add(1) // before a processor sees the span, so that no backend has more than Ended
	span.End(options...)
}

// String has the detail and the number of spans.
func (t *Tracer) String() string {
	c := t.Counts()
	return fmt.Sprintf("tracer of detail %v: %d spans started, %d ended", t.config.Detail, c.Started, c.Ended)
}
