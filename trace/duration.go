package trace

import (
	"context"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// durations is a histogram of seconds. Its options are built once per set of attributes, because
// building them for each call costs several allocations on the Go heap, even without an SDK.
type durations struct {
	histogram metric.Float64Histogram
	options   *sync.Map // durationKey -> []metric.RecordOption
	label     attribute.Key
	rank      []attribute.KeyValue
}

// durationKey identifies a series; label is the pool of an allocation, or the operation of a
// transfer.
type durationKey struct{ device, label string }

func newDurations(meter metric.Meter, name, description string, label attribute.Key, rank []attribute.KeyValue) (durations, error) {
	h, err := meter.Float64Histogram(name, metric.WithUnit("s"), metric.WithDescription(description),
		metric.WithExplicitBucketBoundaries(1e-6, 5e-6, 1e-5, 5e-5, 1e-4, 5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 0.1, 0.5, 1))
	return durations{histogram: h, options: new(sync.Map), label: label, rank: rank}, err
}

// enabled reports whether anything reads the histogram; without an SDK nothing does.
func (d durations) enabled(ctx context.Context) bool { return d.histogram.Enabled(ctx) }

// record adds one duration. ctx carries the span for exemplars.
func (d durations) record(ctx context.Context, took time.Duration, key durationKey, err error) {
	if err != nil {
		d.histogram.Record(ctx, took.Seconds(), metric.WithAttributes(append(d.attributes(key), errorType(err))...))
		return
	}
	options, ok := d.options.Load(key)
	if !ok {
		options, _ = d.options.LoadOrStore(key, []metric.RecordOption{metric.WithAttributeSet(
			attribute.NewSet(d.attributes(key)...))})
	}
	d.histogram.Record(ctx, took.Seconds(), options.([]metric.RecordOption)...)
}

func (d durations) attributes(key durationKey) []attribute.KeyValue {
	return append([]attribute.KeyValue{KeyDevice.String(key.device), d.label.String(key.label)}, d.rank...)
}
