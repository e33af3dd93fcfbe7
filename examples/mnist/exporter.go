package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"sync/atomic"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutlog"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/cistern-ml/cistern/trace"
)

// exporters is where each signal goes.
type exporters struct {
	spans   sdktrace.SpanExporter
	metrics sdkmetric.Reader
	logs    sdklog.Exporter
}

// newExporters makes those of the flag -trace. For a signal that the environment has an exporter for (OTEL_TRACES_EXPORTER,
// OTEL_METRICS_EXPORTER, OTEL_LOGS_EXPORTER) it is that one.
func newExporters(ctx context.Context, where string, out io.Writer) (e exporters, err error) {
	defer plainIfLocal()()
	var spans []autoexport.SpanOption
	var metrics []autoexport.MetricOption
	var logs []autoexport.LogOption
	if where == "stdout" {
		spans = append(spans, autoexport.WithFallbackSpanExporter(func(context.Context) (sdktrace.SpanExporter, error) {
			return stdouttrace.New(stdouttrace.WithWriter(out))
		}))
		metrics = append(metrics, autoexport.WithFallbackMetricReader(func(context.Context) (sdkmetric.Reader, error) {
			x, err := stdoutmetric.New(stdoutmetric.WithWriter(out))
			return sdkmetric.NewPeriodicReader(x), err
		}))
		logs = append(logs, autoexport.WithFallbackLogExporter(func(context.Context) (sdklog.Exporter, error) {
			return stdoutlog.New(stdoutlog.WithWriter(out))
		}))
	}
	var errs [3]error
	e.spans, errs[0] = autoexport.NewSpanExporter(ctx, spans...)
	e.metrics, errs[1] = autoexport.NewMetricReader(ctx, metrics...)
	e.logs, errs[2] = autoexport.NewLogExporter(ctx, logs...)
	if err = errors.Join(errs[:]...); err != nil {
		return e, errors.Join(err, e.close(ctx))
	}
	return e, nil
}

// close ends what was made of the exporters when another one could not be.
func (e exporters) close(ctx context.Context) error {
	var errs []error
	if e.spans != nil {
		errs = append(errs, e.spans.Shutdown(ctx))
	}
	if e.metrics != nil {
		errs = append(errs, e.metrics.Shutdown(ctx))
	}
	if e.logs != nil {
		errs = append(errs, e.logs.Shutdown(ctx))
	}
	return errors.Join(errs...)
}

// plainIfLocal lets the exporters speak without TLS to a collector that the environment does not name: they take localhost
// then, and TLS, which a collector with its default settings does not speak there. The function that it returns undoes it.
func plainIfLocal() (undo func()) {
	var set []string
	for _, signal := range []string{"TRACES", "METRICS", "LOGS"} {
		name := "OTEL_EXPORTER_OTLP_" + signal + "_INSECURE"
		if !given("ENDPOINT", signal) && !given("INSECURE", signal) && os.Setenv(name, "true") == nil {
			set = append(set, name)
		}
	}
	return func() {
		for _, name := range set {
			os.Unsetenv(name)
		}
	}
}

// given reports whether the environment sets an option of a signal, or of all of them.
func given(option, signal string) bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_"+option) != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_"+option) != ""
}

// shared is the standard output, for several goroutines. It keeps its first error, and writes nothing after it.
type shared struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

// Write writes p as a whole.
func (s *shared) Write(p []byte) (n int, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		if n, s.err = s.w.Write(p); s.err != nil {
			s.err = fmt.Errorf("the standard output: %w", s.err)
		}
	}
	return n, s.err
}

func (s *shared) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
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

// countingLogs counts the log records that an exporter takes.
type countingLogs struct {
	sdklog.Exporter
	n *atomic.Int64
}

// Export exports the records.
func (c *countingLogs) Export(ctx context.Context, records []sdklog.Record) error {
	err := c.Exporter.Export(ctx, records)
	if err == nil {
		c.n.Add(int64(len(records)))
	}
	return err
}

// made counts the log records that there are.
type made struct {
	sdklog.Processor
	n *atomic.Int64
}

// OnEmit counts a record and passes it on.
func (m made) OnEmit(ctx context.Context, r *sdklog.Record) error {
	m.n.Add(1)
	return m.Processor.OnEmit(ctx, r)
}
