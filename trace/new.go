package trace

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/log"
	"go.opentelemetry.io/otel/metric"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	nooptrace "go.opentelemetry.io/otel/trace/noop"
)

// New makes a Tracer. A wrong Config is an error that wraps [ErrInvalid]. An error of the meter in
// making an instrument is returned, too.
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
		"Time that the driver takes to allocate a segment.", KeyPool, t.rank)
	t.copyDuration, err2 = newDurations(t.meter, "cistern.transfer.duration",
		"Time from queueing a copy or kernel to its completion, including the wait in its stream.", KeyOperation, t.rank)
	t.stepMetrics, err3 = newStepMetrics(t.meter)
	t.collectiveMetrics, err4 = newCollectiveMetrics(t.meter)
	if err := errors.Join(err1, err2, err3, err4); err != nil {
		return nil, fmt.Errorf("trace: New: %w", err)
	}
	return t, nil
}

// Close stops watching every cache and pool. Open spans stay open until their operations end. If
// the meter fails to unregister a watch, Close returns its error, and the next Close tries again;
// otherwise a second Close does nothing. The providers belong to the caller.
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
