package trace

import (
	"fmt"

	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
)

// ErrInvalid is the class of errors about wrong arguments, for errors.Is; it is [device.ErrInvalid]. Nothing changed.
var ErrInvalid = device.ErrInvalid

// Config says where spans and metrics go, and how many spans there are. The zero Config uses the global
// providers and [Slow].
type Config struct {
	// TracerProvider makes the spans; nil: the global one (otel.GetTracerProvider), which may be set later.
	TracerProvider oteltrace.TracerProvider
	// MeterProvider makes the metrics; nil: the global one (otel.GetMeterProvider), which may be set later.
	MeterProvider metric.MeterProvider
	// LoggerProvider takes the log event of a request that ran out of memory; nil: the global one
	// (otel.GetLoggerProvider), which may be set later.
	LoggerProvider log.LoggerProvider
	// Detail is what gets a span.
	Detail Detail
	// AllEvery gives one step in AllEvery the detail All, starting with the first; the others have Detail.
	// 0: none.
	AllEvery int
}

func (c Config) validate() error {
	if c.Detail < Steps || c.Detail > All {
		return fmt.Errorf("trace: Config.Detail is %d: %w: it must be Steps (%d), Slow (%d) or All (%d)",
			c.Detail, ErrInvalid, Steps, Slow, All)
	}
	if c.AllEvery < 0 {
		return fmt.Errorf("trace: Config.AllEvery is %d: %w: it must be 0 (no sampling) or more", c.AllEvery, ErrInvalid)
	}
	if c.AllEvery > 0 && c.Detail == All {
		return fmt.Errorf("trace: Config.AllEvery is %d with Detail All: %w: every step has that detail already; "+
			"set Detail to Slow or Steps", c.AllEvery, ErrInvalid)
	}
	return nil
}
