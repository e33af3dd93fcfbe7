// Package telemetry sets up the OpenTelemetry SDK for a program that traces its device memory:
//
//	sdk, err := telemetry.New(ctx, telemetry.Config{Exporter: "otlp", Service: "my-training"})
//	ctx, span := sdk.Start(ctx, "training")
//	tracer := sdk.Tracer() // for caches, pools and profilers
//	// ...
//	sdk.CloseTracer(tracer) // while the caches are open
//	sdk.Shutdown(span, err)
//	sdk.Report(os.Stderr)
//
// Spans, metrics and logs go to the exporters that OpenTelemetry's environment variables name, such
// as OTEL_EXPORTER_OTLP_ENDPOINT and OTEL_METRICS_EXPORTER. The telemetry of a program must not
// change its result: errors of exporters are counted and reported, never returned.
package telemetry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/trace"
)

const (
	// allEvery is the default of Config.AllEvery.
	allEvery = 100
	// sending limits the time for sending what is left at the end.
	sending = 5 * time.Second
)

// Config is the configuration of an SDK.
type Config struct {
	// Exporter is "otlp" or "stdout". OpenTelemetry's environment variables can name another
	// exporter for each signal.
	Exporter string
	// Output is the writer of "stdout". It is used by several goroutines, one at a time.
	Output io.Writer
	// Service is the default of the attribute service.name. OTEL_SERVICE_NAME overrides it.
	Service string
	// AllEvery is the number of steps of which one has a span for each allocation and free; 0: 100.
	// Without steps (trace.Profiler.StartStep) there are no such spans.
	AllEvery int
}

// SDK is the OpenTelemetry SDK with its exporters. A nil SDK does nothing. Its methods may be
// called from several goroutines, except Shutdown and Report, which end it in this order.
type SDK struct {
	tracer   *trace.Tracer
	config   trace.Config // of tracer
	provider *sdktrace.TracerProvider
	meters   *sdkmetric.MeterProvider
	logs     *sdklog.LoggerProvider
	exported atomic.Int64 // spans of tracers that an exporter accepted
	records  atomic.Int64 // log records that were made
	logged   atomic.Int64 // log records that an exporter accepted
	failures atomic.Int64
	failure  atomic.Pointer[error] // the first

	mu      sync.Mutex
	ranks   []*trace.Tracer
	metrics error     // of sending the last metrics
	until   time.Time // the deadline for sending what is left
}

// New sets up an SDK, and makes it the receiver of otel's errors. An unknown exporter, or one that
// can't be made, is an error.
func New(ctx context.Context, c Config) (*SDK, error) {
	out := &serial{w: c.Output}
	if c.Exporter != "otlp" && c.Exporter != "stdout" {
		return nil, fmt.Errorf("telemetry: exporter %q: want otlp or stdout", c.Exporter)
	}
	if c.Exporter == "stdout" && c.Output == nil {
		return nil, errors.New("telemetry: exporter stdout: want an Output")
	}
	to, err := newExporters(ctx, c.Exporter, out)
	if err != nil {
		return nil, fmt.Errorf("telemetry: exporter %s: %w", c.Exporter, err)
	}
	t := &SDK{}
	res, err := describe(ctx, c.Service)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: %w", err), to.close(ctx))
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithIDGenerator(trace.IDGenerator{}),
		sdktrace.WithBatcher(&counting{to.spans, &t.exported}))
	t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(to.metrics))
	t.logs = sdklog.NewLoggerProvider(sdklog.WithResource(res),
		sdklog.WithProcessor(made{sdklog.NewBatchProcessor(&countingLogs{to.logs, &t.logged}), &t.records}))
	t.config = trace.Config{TracerProvider: t.provider, MeterProvider: t.meters, LoggerProvider: t.logs, AllEvery: cmp.Or(c.AllEvery, allEvery)}
	if t.tracer, err = trace.New(t.config); err != nil {
		return nil, errors.Join(fmt.Errorf("telemetry: %w", err), t.provider.Shutdown(ctx), t.meters.Shutdown(ctx), t.logs.Shutdown(ctx))
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(t.fail))
	return t, nil
}

// Tracer returns the tracer for caches, pools and profilers. For a nil SDK it is nil, which package
// trace accepts.
func (t *SDK) Tracer() *trace.Tracer {
	if t == nil {
		return nil
	}
	return t.tracer
}

// RankTracer makes the tracer of a rank among several, whose telemetry names the rank.
func (t *SDK) RankTracer(rank, size int) (*trace.Tracer, error) {
	if t == nil {
		return nil, nil
	}
	config := t.config
	config.Rank, config.WorldSize = rank, size
	tracer, err := trace.New(config)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ranks = append(t.ranks, tracer)
	return tracer, nil
}

// Start begins the span of the whole program. Steps are traces of their own, with links to it;
// copies and driver calls outside of steps are below it.
func (t *SDK) Start(ctx context.Context, name string, attributes ...attribute.KeyValue) (context.Context, oteltrace.Span) {
	if t == nil {
		return ctx, oteltrace.SpanFromContext(ctx)
	}
	return t.provider.Tracer(trace.ScopeName+"/telemetry").Start(ctx, name, oteltrace.WithAttributes(attributes...))
}

// CloseTracer sends the metrics and closes a tracer. It is called before the caches are closed,
// because the metrics of a closed cache are 0. Sending takes at most half of the time for all that
// is left, so that the spans have the other half.
func (t *SDK) CloseTracer(tracer *trace.Tracer) {
	if t == nil {
		return
	}
	t.mu.Lock() // several ranks may end at a time
	defer t.mu.Unlock()
	ctx, cancel := t.left(sending / 2)
	defer cancel()
	if err := t.meters.ForceFlush(ctx); err != nil {
		t.fail(err)
		t.metrics = cmp.Or(t.metrics, err) // the first: later ranks don't send those of closed caches again
	}
	t.fail(tracer.Close())
}

// Shutdown ends the program's span with err, or without an error if that is nil, and sends all that
// is left, in 5 seconds at most.
func (t *SDK) Shutdown(span oteltrace.Span, err error) {
	if t == nil {
		return
	}
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
	ctx, cancel := t.left(0)
	defer cancel()
	var sent sync.WaitGroup // at once, so that one that can't be sent leaves time for the others
	for _, shutdown := range []func(context.Context) error{t.provider.Shutdown, t.meters.Shutdown, t.logs.Shutdown} {
		sent.Go(func() { t.fail(shutdown(ctx)) })
	}
	sent.Wait()
}

// left returns a context that ends reserve before the deadline for sending. The first call sets the
// deadline.
func (t *SDK) left(reserve time.Duration) (context.Context, context.CancelFunc) {
	if t.until.IsZero() {
		t.until = time.Now().Add(sending)
	}
	return context.WithDeadline(context.Background(), t.until.Add(-reserve))
}

// fail counts the errors of exporters and keeps the first.
func (t *SDK) fail(err error) {
	if err != nil {
		t.failures.Add(1)
		t.failure.CompareAndSwap(nil, &err)
	}
}

// Report writes how complete the telemetry is: the spans that were made, sampled out and dropped,
// and the first error of the exporters. It is called after Shutdown.
func (t *SDK) Report(w io.Writer) {
	if t == nil {
		return
	}
	exported := t.exported.Load() // before the counts of spans, which are then the larger
	c := t.tracer.Counts()
	for _, rank := range t.ranks {
		of := rank.Counts()
		c.Started += of.Started
		c.SampledOut += of.SampledOut
		c.Skipped += of.Skipped
	}
	fmt.Fprintf(w, "\nspans: %d made, %d sampled out (one step in %d has all allocations and frees), %d dropped\n",
		c.Started, c.SampledOut+c.Skipped, t.config.AllEvery, c.Started-exported)
	if n := t.records.Load(); n > 0 {
		fmt.Fprintf(w, "log records: %d made, %d dropped\n", n, n-t.logged.Load())
	}
	if t.metrics != nil {
		fmt.Fprintf(w, "the last metrics were not sent: %v\n", t.metrics)
	}
	if err := t.failure.Load(); err != nil {
		fmt.Fprintf(w, "the exporter failed %d times, first with: %v\n", t.failures.Load(), *err)
	}
}
