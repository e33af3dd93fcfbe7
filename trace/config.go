package trace

import (
	"fmt"

	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Config sets where spans and metrics go, and which operations get spans. The zero Config uses the
// global providers and [Slow].
type Config struct {
	// TracerProvider makes the spans; nil: the global one (otel.GetTracerProvider), which may be
	// set later.
	TracerProvider oteltrace.TracerProvider
	// MeterProvider makes the metrics; nil: the global one (otel.GetMeterProvider), which may be
	// set later.
	MeterProvider metric.MeterProvider
	// LoggerProvider gets the log event of a request that ran out of memory; nil: the global one
	// (otel.GetLoggerProvider), which may be set later.
	LoggerProvider log.LoggerProvider
	// Detail is the level of detail of the spans.
	Detail Detail
	// AllEvery makes one step in AllEvery run at the detail All, beginning with the first step. The
	// other steps have Detail. 0: no step runs at All.
	AllEvery int
	// Rank and WorldSize are the rank of the process or goroutine in the training, from 0 on, and
	// the number of ranks, as in rendezvous.Config. Every span, metric and log record has them.
	// Several ranks in one process use a Tracer each, with the same providers. A WorldSize of 0:
	// there are no ranks.
	Rank, WorldSize int
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
	if c.WorldSize < 0 || c.Rank < 0 || c.Rank >= max(c.WorldSize, 1) {
		return fmt.Errorf("trace: Config.Rank is %d of a WorldSize of %d: %w: Rank must be 0 to WorldSize-1, or both must be 0 without ranks",
			c.Rank, c.WorldSize, ErrInvalid)
	}
	return nil
}
