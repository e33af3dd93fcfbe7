package main

import (
	"context"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/otel/exporters/otlp/otlpmetric/otlpmetrichttp"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/trace"
)

// exporters are those of the flag -trace.
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

// counting counts the spans of the tracer that an exporter takes, not those of others.
type counting struct {
	sdktrace.SpanExporter
	n *atomic.Int64
}

// ExportSpans exports the spans.
func (c *counting) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := c.SpanExporter.ExportSpans(ctx, spans)
	for _, s := range spans {
		if err == nil && s.InstrumentationScope().Name == trace.ScopeName {
			c.n.Add(1)
		}
	}
	return err
}
