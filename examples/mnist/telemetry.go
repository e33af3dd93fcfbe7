package main

import (
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
	// allEvery gives every allocation and free of one step in so many a span.
	allEvery = 100
	// sending is how long the program may take to send what is left.
	sending = 5 * time.Second
	// scopeName is the instrumentation scope of the program's own span.
	scopeName = "github.com/cistern-ml/cistern/examples/mnist"
)

// telemetry is the OpenTelemetry SDK with an exporter, or nothing: so is nil.
type telemetry struct {
	tracer   *trace.Tracer // nil without -trace
	config   trace.Config  // its own
	mu       sync.Mutex
	ranks    []*trace.Tracer // those of ranks
	provider *sdktrace.TracerProvider
	meters   *sdkmetric.MeterProvider
	logs     *sdklog.LoggerProvider
	exported atomic.Int64 // spans of tracer that an exporter took
	records  atomic.Int64 // log records that there were
	logged   atomic.Int64 // of these, that an exporter took
	failures atomic.Int64
	failure  atomic.Pointer[error] // the first
	metrics  error                 // of sending the last metrics
	until    time.Time             // for sending what is left
}

// newTelemetry sets up where the flag -trace says; stdout writes to out.
func newTelemetry(ctx context.Context, where string, out io.Writer) (*telemetry, error) {
	t := &telemetry{}
	if where == "none" {
		return t, nil
	}
	to, err := newExporters(ctx, where, out)
	if err != nil {
		return nil, fmt.Errorf("mnist: -trace %s: %w", where, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(t.fail))
	res, err := describe(ctx)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("mnist: -trace %s: %w", where, err), to.close(ctx))
	}
	t.provider = sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithIDGenerator(trace.IDGenerator{}),
		sdktrace.WithBatcher(&counting{to.spans, &t.exported}))
	t.meters = sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(to.metrics))
	t.logs = sdklog.NewLoggerProvider(sdklog.WithResource(res),
		sdklog.WithProcessor(made{sdklog.NewBatchProcessor(&countingLogs{to.logs, &t.logged}), &t.records}))
	t.config = trace.Config{TracerProvider: t.provider, MeterProvider: t.meters, LoggerProvider: t.logs, AllEvery: allEvery}
	t.tracer, err = trace.New(t.config)
	return t, err
}

// on reports whether there is an SDK.
func (t *telemetry) on() bool { return t != nil && t.tracer != nil }

// observer is what observes caches, pools and steps; nil without an SDK. A rank's says which it is.
func (t *telemetry) observer(p *party) (*trace.Tracer, error) {
	switch {
	case t == nil:
		return nil, nil
	case p == nil || !t.on():
		return t.tracer, nil
	}
	config := t.config
	config.Rank, config.WorldSize = p.rank, p.size
	tracer, err := trace.New(config)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ranks = append(t.ranks, tracer)
	return tracer, nil
}

// start begins the span of the whole run. Steps are traces of their own, with links to it;
// everything else is below it: a copy or a driver call has a span only inside of another, and half
// of them belong to no step.
func (t *telemetry) start(ctx context.Context, o options) (context.Context, oteltrace.Span) {
	if !t.on() {
		return ctx, oteltrace.SpanFromContext(ctx)
	}
	return t.provider.Tracer(scopeName).Start(ctx, "mnist", oteltrace.WithAttributes(
		attribute.String("mnist.device", o.device), attribute.String("mnist.model", o.model),
		attribute.String("mnist.optimizer", o.optimizer), attribute.Int("mnist.batch", o.batch), attribute.Int("mnist.epochs", o.epochs)))
}

// stopWatching sends the metrics as they are now, and leaves it at that: when everything is closed they are 0. It takes half
// of the time to send, so that the spans have the other half.
func (t *telemetry) stopWatching(tracer *trace.Tracer) {
	if !t.on() {
		return
	}
	t.mu.Lock() // ranks end at a time
	defer t.mu.Unlock()
	ctx, cancel := t.left(sending / 2)
	defer cancel()
	t.metrics = t.meters.ForceFlush(ctx)
	t.fail(t.metrics)
	t.fail(tracer.Close())
}

// end ends the run's span and sends what is left. ctx is that of the run, which ended with err.
func (t *telemetry) end(ctx context.Context, span oteltrace.Span, err error) {
	if !t.on() {
		return
	}
	if err != nil && !interrupted(ctx, err) {
		span.SetStatus(codes.Error, err.Error())
	}
	span.SetAttributes(attribute.Bool("mnist.interrupted", ctx.Err() != nil))
	span.End()
	ctx, cancel := t.left(0)
	defer cancel()
	var sent sync.WaitGroup // at once: one that can't be sent must not take the others' time
	for _, shutdown := range []func(context.Context) error{t.provider.Shutdown, t.meters.Shutdown, t.logs.Shutdown} {
		sent.Go(func() { t.fail(shutdown(ctx)) })
	}
	sent.Wait()
}

// left is a context for the time that is left to send, less reserve; the first call starts the
// clock.
func (t *telemetry) left(reserve time.Duration) (context.Context, context.CancelFunc) {
	if t.until.IsZero() {
		t.until = time.Now().Add(sending)
	}
	return context.WithDeadline(context.Background(), t.until.Add(-reserve))
}

// fail keeps the first error of an exporter; one line at the end tells of it.
func (t *telemetry) fail(err error) {
	if err != nil {
		t.failures.Add(1)
		t.failure.CompareAndSwap(nil, &err)
	}
}

// report says how complete the trace is. It is called after end.
func (t *telemetry) report(w io.Writer) {
	if !t.on() {
		return
	}
	exported := t.exported.Load() // first: what has been exported was counted before
	c := t.tracer.Counts()
	for _, rank := range t.ranks {
		mine := rank.Counts()
		c.Started += mine.Started
		c.SampledOut += mine.SampledOut
		c.Skipped += mine.Skipped
	}
	fmt.Fprintf(w, "\nspans: %d made, %d sampled out (allocations and frees: one step in %d has them all), %d dropped\n",
		c.Started, c.SampledOut+c.Skipped, allEvery, c.Started-exported)
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
