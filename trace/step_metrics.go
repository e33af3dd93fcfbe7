package trace

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// stepMetrics are the histograms of training steps.
type stepMetrics struct {
	duration metric.Float64Histogram
	peak     metric.Int64Histogram
}

func newStepMetrics(meter metric.Meter) (m stepMetrics, err error) {
	var err1, err2 error
	m.duration, err1 = meter.Float64Histogram("cistern.step.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a training step on the host."),
		metric.WithExplicitBucketBoundaries(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30))
	var bounds []float64
	for b := float64(1 << 20); b <= 1<<40; b *= 2 {
		bounds = append(bounds, b)
	}
	m.peak, err2 = meter.Int64Histogram("cistern.step.memory.peak", metric.WithUnit("By"),
		metric.WithDescription("The most device memory that was allocated during a training step."),
		metric.WithExplicitBucketBoundaries(bounds...))
	return m, errors.Join(err1, err2)
}

// record adds a step. ctx carries its span, for exemplars. Steps that failed have the attribute error.type.
func (m stepMetrics) record(ctx context.Context, s *Step, profile *StepProfile) {
	if !m.duration.Enabled(ctx) && !m.peak.Enabled(ctx) {
		return
	}
	options := s.profiler.series
	if profile.Failed {
		a := s.profiler.identity
		options = []metric.RecordOption{metric.WithAttributes(append(a[:len(a):len(a)], s.errorType())...)}
	}
	m.duration.Record(ctx, profile.HostTime.Seconds(), options...)
	m.peak.Record(ctx, profile.AllocatedPeak, options...)
}

// errorType is the class of what the step first failed with.
func (s *Step) errorType() attribute.KeyValue {
	s.profiler.mu.Lock()
	defer s.profiler.mu.Unlock()
	return errorType(s.err)
}
