package trace

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
)

// collectiveMetrics are the instruments of communicators.
type collectiveMetrics struct {
	duration, bus metric.Float64Histogram
	io            metric.Int64Counter
}

func newCollectiveMetrics(meter metric.Meter) (m collectiveMetrics, err error) {
	var err1, err2, err3 error
	m.duration, err1 = meter.Float64Histogram("cistern.collective.duration", metric.WithUnit("s"),
		metric.WithDescription("Time of a collective operation on the device, including the wait for other ranks."),
		metric.WithExplicitBucketBoundaries(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 10, 60))
	m.bus, err2 = meter.Float64Histogram("cistern.collective.bus_bandwidth", metric.WithUnit("By/s"),
		metric.WithDescription("Bus bandwidth of a collective operation, as NCCL's tests compute it: bytes over a rank's link per second."),
		metric.WithExplicitBucketBoundaries(1e7, 1e8, 2.5e8, 5e8, 1e9, 2.5e9, 5e9, 1e10, 2.5e10, 5e10, 1e11, 2.5e11, 5e11, 1e12))
	m.io, err3 = meter.Int64Counter("cistern.collective.io", metric.WithUnit("By"),
		metric.WithDescription("Bytes of collective operations, as NCCL's tests count them."))
	return m, errors.Join(err1, err2, err3)
}

// enabled reports whether any reader uses the metrics; without an SDK none does.
func (m collectiveMetrics) enabled(ctx context.Context) bool {
	return m.duration.Enabled(ctx) || m.bus.Enabled(ctx) || m.io.Enabled(ctx)
}

// collectiveSeries identifies a series of a communicator.
type collectiveSeries struct {
	op    collectiveOp
	dtype string
}

// record adds an operation. ctx carries its span, for exemplars. A failed operation records only
// its duration, with its error, and an operation without a time only its bytes.
func (m collectiveMetrics) record(ctx context.Context, c *Communicator, x *flight, r reached, err error) {
	if !m.enabled(ctx) {
		return
	}
	if err != nil {
		m.duration.Record(ctx, r.took.Seconds(), metric.WithAttributes(append(c.attributes(x), errorType(err))...))
		return
	}
	key := collectiveSeries{x.op, x.dtype}
	options, ok := c.series.Load(key)
	if !ok {
		options, _ = c.series.LoadOrStore(key, metric.WithAttributeSet(attribute.NewSet(c.attributes(x)...)))
	}
	option := options.(metric.MeasurementOption)
	m.io.Add(ctx, x.bytes, option)
	if !r.timed {
		return
	}
	m.duration.Record(ctx, r.took.Seconds(), option)
	if r.took > 0 && x.onBus > 0 {
		m.bus.Record(ctx, x.onBus/r.took.Seconds(), option)
	}
}

// attributes returns the attributes of an operation's series.
func (c *Communicator) attributes(x *flight) []attribute.KeyValue {
	a := append(identity(c.inner.Device()), KeyCollective.String(collectiveNames[x.op]), KeyRank.Int(c.Rank()), KeyWorldSize.Int(c.size))
	if x.dtype != "" {
		a = append(a, KeyCollectiveType.String(x.dtype))
	}
	return a
}
