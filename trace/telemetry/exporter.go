package telemetry

import (
	"context"
	"errors"
	"io"
	"os"

	"go.opentelemetry.io/contrib/exporters/autoexport"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutlog"
	"go.opentelemetry.io/otel/exporters/stdout/stdoutmetric"
	"go.opentelemetry.io/otel/exporters/stdout/stdouttrace"
	sdklog "go.opentelemetry.io/otel/sdk/log"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// exporters are the destinations of the three signals.
type exporters struct {
	spans   sdktrace.SpanExporter
	metrics sdkmetric.Reader
	logs    sdklog.Exporter
}

// newExporters makes the exporters. The variables OTEL_TRACES_EXPORTER, OTEL_METRICS_EXPORTER and
// OTEL_LOGS_EXPORTER override the one of the configuration.
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

// close closes the exporters that were made, after another one failed.
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

// plainIfLocal lets the exporters connect without TLS to the default endpoint, which is a collector
// on localhost: with its default settings a collector has no TLS. The function that it returns
// undoes it.
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

// given reports whether the environment sets an option for a signal or for all signals.
func given(option, signal string) bool {
	return os.Getenv("OTEL_EXPORTER_OTLP_"+option) != "" || os.Getenv("OTEL_EXPORTER_OTLP_"+signal+"_"+option) != ""
}
