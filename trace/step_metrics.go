package trace

import (
	"context"
	"errors"
	"math"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// stepMetrics are the instruments of training steps: histograms of all steps, and gauges of the
// last one.
type stepMetrics struct {
	duration metric.Float64Histogram
	dataWait metric.Float64Histogram
	peak     metric.Int64Histogram
	lastPeak metric.Int64Gauge
	busy     metric.Float64Gauge
}

func newStepMetrics(meter metric.Meter) (m stepMetrics, err error) {
	var errs [5]error
	seconds := metric.WithExplicitBucketBoundaries(1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
	m.duration, errs[0] = meter.Float64Histogram("cistern.step.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a training step on the host."), seconds)
	m.dataWait, errs[4] = meter.Float64Histogram("cistern.step.data.wait_time", metric.WithUnit("s"),
		metric.WithDescription("Time of a training step in which it waited for data of a loader."), seconds)
	m.peak, errs[1] = meter.Int64Histogram("cistern.step.memory.peak", metric.WithUnit("By"),
		metric.WithDescription("The most device memory that was allocated during a training step."),
		metric.WithExplicitBucketBoundaries(peakBuckets()...))
	m.lastPeak, errs[2] = meter.Int64Gauge("cistern.step.memory.last_peak", metric.WithUnit("By"),
		metric.WithDescription("The most device memory that was allocated during the last training step."))
	m.busy, errs[3] = meter.Float64Gauge("cistern.step.device.utilization", metric.WithUnit("1"),
		metric.WithDescription("The share of the last training step's time on the compute stream in which the stream had work."))
	return m, errors.Join(errs[:]...)
}

// peakBuckets returns 15 buckets for each power of two, from 1 KiB to 512 GiB. The peaks of a
// training are often all equal, and Prometheus may take any point in their bucket as their
// quantile. For an error below 5 % each boundary is at most 1.05 times the one before.
func peakBuckets() (bounds []float64) {
	const perPower = 15
	for i := -1; i <= 29*perPower; i++ {
		bounds = append(bounds, math.Round(math.Exp2(10+float64(i)/perPower)))
	}
	return bounds
}

// record adds a step. ctx carries its span, for exemplars. In histograms a failed step has the
// attribute error.type.
func (m stepMetrics) record(ctx context.Context, s *Step, profile *StepProfile) {
	if !m.duration.Enabled(ctx) && !m.dataWait.Enabled(ctx) && !m.peak.Enabled(ctx) && !m.lastPeak.Enabled(ctx) && !m.busy.Enabled(ctx) {
		return
	}
	series := s.profiler.series
	m.lastPeak.Record(ctx, profile.AllocatedPeak, series...)
	if profile.BusyTimed && profile.DeviceTime > 0 {
		m.busy.Record(ctx, float64(profile.BusyTime)/float64(profile.DeviceTime), series...)
	}
	if profile.Failed {
		a := s.profiler.identity
		series = []metric.RecordOption{metric.WithAttributes(append(a[:len(a):len(a)], s.errorType())...)}
	}
	m.duration.Record(ctx, profile.HostTime.Seconds(), series...)
	m.peak.Record(ctx, profile.AllocatedPeak, series...)
	if s.waited.nexts.Load() > 0 {
		m.dataWait.Record(ctx, time.Duration(s.waited.nanoseconds.Load()).Seconds(), series...)
	}
}

// errorType returns the class of the step's first error.
func (s *Step) errorType() attribute.KeyValue {
	s.profiler.mu.Lock()
	defer s.profiler.mu.Unlock()
	return errorType(s.err)
}
