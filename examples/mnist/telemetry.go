package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"

	"github.com/cistern-ml/cistern/trace"
)

// allEvery gives every allocation and free of one step in so many a span.
const allEvery = 100

// telemetry is the OpenTelemetry SDK with an exporter, or nothing.
type telemetry struct {
	tracer   *trace.Tracer // nil without -trace
	provider *sdktrace.TracerProvider
	exported atomic.Int64 // spans that an exporter took
	failures atomic.Int64
	failure  atomic.Pointer[error] // the first
	shutdown []func(context.Context) error
}

// newTelemetry sets up where the flag -trace says; stdout writes to out.
func newTelemetry(ctx context.Context, where string, out io.Writer) (*telemetry, error) {
	t := &telemetry{}
	if where == "none" {
		return t, nil
	}
	spans, metrics, err := exporters(ctx, where, out)
	if err != nil {
		return nil, fmt.Errorf("mnist: -trace %s: %w", where, err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(t.fail))
	res := resource.NewSchemaless(semconv.ServiceName("mnist"))
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(res), sdktrace.WithBatcher(&counting{spans, &t.exported}))
	meters := sdkmetric.NewMeterProvider(sdkmetric.WithResource(res), sdkmetric.WithReader(sdkmetric.NewPeriodicReader(metrics)))
	t.provider = provider
	t.shutdown = append(t.shutdown, provider.Shutdown, meters.Shutdown)
	t.tracer, err = trace.New(trace.Config{TracerProvider: provider, MeterProvider: meters, AllEvery: allEvery})
	return t, err
}

func exporters(ctx context.Context, where string, out io.Writer) (sdktrace.SpanExporter, sdkmetric.Exporter, error) {
	if where == "stdout" {
		spans, err := stdouttrace.New(stdouttrace.WithWriter(out))
		if err != nil {
			return nil, nil, err
		}
		metrics, err := stdoutmetric.New(stdoutmetric.WithWriter(out))
		return spans, metrics, err
	}
	var spanOptions []otlptracehttp.Option
	if !endpointGiven("TRACES") {
		spanOptions = append(spanOptions, otlptracehttp.WithInsecure())
	}
	spans, err := otlptracehttp.New(ctx, spanOptions...)
	if err != nil {
		return nil, nil, err
	}
	var metricOptions []otlpmetrichttp.Option
	if !endpointGiven("METRICS") {
		metricOptions = append(metricOptions, otlpmetrichttp.WithInsecure())
	}
	metrics, err := otlpmetrichttp.New(ctx, metricOptions...)
	return spans, metrics, err
}

// endpointGiven reports whether the environment says where a signal goes. Where it does not, the exporters take
// localhost:4318, and TLS, which a collector with its default settings does not speak there.
func endpointGiven(signal string) bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_ENDPOINT") != ""
}

// fail keeps the first error of an exporter; one line at the end tells of it.
func (t *telemetry) fail(err error) {
	t.failures.Add(1)
	t.failure.CompareAndSwap(nil, &err)
}

// close sends what is left, for 5 seconds at most.
func (t *telemetry) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var errs []error
	for _, f := range t.shutdown {
		errs = append(errs, f(ctx))
	}
	t.shutdown = nil
	if err := errors.Join(errs...); err != nil {
		t.fail(err)
	}
}

// report says how complete the trace is. It is called after close.
func (t *telemetry) report(w io.Writer) {
	if t.tracer == nil {
		return
	}
	c, exported := t.tracer.Counts(), t.exported.Load()
	fmt.Fprintf(w, "\nspans: %d made, %d sampled out (allocations and frees: one step in %d has them all), %d dropped\n",
		c.Started, c.SampledOut+c.Skipped, allEvery, c.Started-exported)
	if err := t.failure.Load(); err != nil {
		fmt.Fprintf(w, "the exporter failed %d times, first with: %v\n", t.failures.Load(), *err)
	}
}

// shared is a writer for several goroutines.
type shared struct {
	mu sync.Mutex
	w  io.Writer
}

// Write writes p as a whole.
func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.w.Write(p)
}

// counting counts the spans that an exporter takes.
type counting struct {
	sdktrace.SpanExporter
	n *atomic.Int64
}

// ExportSpans exports the spans.
func (c *counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		c.n.Add(int64(len(spans)))
	}
	return err
}
