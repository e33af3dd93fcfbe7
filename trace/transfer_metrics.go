package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cistern-ml/cistern/transfer"
)

// transferMetrics are the instruments that all watched pools share.
type transferMetrics struct {
	instruments
	usage, limit, peak, allocations, io, copies, pending metric.Int64Observable

	utilization metric.Float64Observable
}

func newTransferMetrics(meter metric.Meter) (*transferMetrics, error) {
	m := &transferMetrics{instruments: instruments{meter: meter}}
	m.usage = m.upDown("cistern.pinned.memory.usage", "By", "Pinned host memory held from the driver, by state.")
	m.limit = m.upDown("cistern.pinned.memory.limit", "By", "Pinned host memory that may be held from the driver.")
	m.utilization = m.share("cistern.pinned.memory.utilization", "The share of the limit that is held from the driver, by state.")
	m.peak = m.gauge("cistern.pinned.memory.peak", "By", "The most pinned host memory since the peaks were reset.")
	m.allocations = m.counter("cistern.pinned.allocations", "{allocation}", "Requests for pinned host memory, by result.")
	m.io = m.counter("cistern.transfer.io", "By", "Bytes copied between host and device.")
	m.copies = m.counter("cistern.transfer.copies", "{copy}", "Copies between host and device.")
	m.pending = m.upDown("cistern.transfer.pending", "{buffer}", "Released pinned buffers that a copy still uses.")
	return m, m.err()
}

// transferSeries are the series of one pool.
type transferSeries struct {
	*transferMetrics
	pool                                                                  *transfer.Pool
	active, cached, peakActive, peakReserved, hit, miss, h2d, d2h, device []metric.ObserveOption
}

func (m *transferMetrics) register(of *Tracer, pool *transfer.Pool, caller []attribute.KeyValue) (metric.Registration, error) {
	series := newSeries(append([]attribute.KeyValue{KeyDevice.String(pool.Device().Name())}, of.rank...), caller)
	s := &transferSeries{
		transferMetrics: m,
		pool:            pool,
		active:          series.with(KeyState.String("active")),
		cached:          series.with(KeyState.String("cached")),
		peakActive:      series.with(KeyState.String("active")),
		peakReserved:    series.with(KeyState.String("reserved")),
		hit:             series.with(KeyResult.String("hit")),
		miss:            series.with(KeyResult.String("miss")),
		h2d:             series.with(KeyDirection.String("h2d")),
		d2h:             series.with(KeyDirection.String("d2h")),
		device:          series.with(),
	}
	return m.meter.RegisterCallback(s.observe, m.all...)
}

func (s *transferSeries) observe(_ context.Context, o metric.Observer) error {
	stats := s.pool.Stats()
	o.ObserveInt64(s.usage, stats.ActiveBytes.Current, s.active...)
	o.ObserveInt64(s.usage, stats.CachedBytes.Current, s.cached...)
	if limit := s.pool.MaxBytes(); limit > 0 {
		o.ObserveInt64(s.limit, limit, s.device...)
		o.ObserveFloat64(s.utilization, float64(stats.ActiveBytes.Current)/float64(limit), s.active...)
		o.ObserveFloat64(s.utilization, float64(stats.CachedBytes.Current)/float64(limit), s.cached...)
	}
	o.ObserveInt64(s.peak, stats.ActiveBytes.Peak, s.peakActive...)
	o.ObserveInt64(s.peak, stats.AllocatedBytes.Peak, s.peakReserved...)
	o.ObserveInt64(s.allocations, stats.Hits, s.hit...)
	o.ObserveInt64(s.allocations, stats.Misses, s.miss...)
	o.ObserveInt64(s.io, stats.H2DBytes, s.h2d...)
	o.ObserveInt64(s.io, stats.D2HBytes, s.d2h...)
	o.ObserveInt64(s.copies, stats.H2DCopies, s.h2d...)
	o.ObserveInt64(s.copies, stats.D2HCopies, s.d2h...)
	o.ObserveInt64(s.pending, stats.Pending, s.device...)
	return nil
}
