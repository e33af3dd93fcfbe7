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
	usage, peak, io, copies, pending metric.Int64Observable
}

func newTransferMetrics(meter metric.Meter) (*transferMetrics, error) {
	m := &transferMetrics{instruments: instruments{meter: meter}}
	m.usage = m.upDown("cistern.pinned.memory.usage", "By", "Pinned host memory held from the driver, by what it is doing.")
	m.peak = m.gauge("cistern.pinned.memory.peak", "By", "The most pinned host memory since the peaks were reset.")
	m.io = m.counter("cistern.transfer.io", "By", "Bytes copied between host and device.")
	m.copies = m.counter("cistern.transfer.copies", "{copy}", "Copies between host and device.")
	m.pending = m.upDown("cistern.transfer.pending", "{buffer}", "Released pinned buffers that a copy still uses.")
	return m, m.err()
}

// transferSeries are the series of one pool.
type transferSeries struct {
	*transferMetrics
	pool                                                       *transfer.Pool
	active, cached, peakActive, peakReserved, h2d, d2h, device []metric.ObserveOption
}

func (m *transferMetrics) register(pool *transfer.Pool, caller []attribute.KeyValue) (metric.Registration, error) {
	device := pool.Device().Name()
	s := &transferSeries{
		transferMetrics: m,
		pool:            pool,
		active:          series(device, caller, KeyState.String("active")),
		cached:          series(device, caller, KeyState.String("cached")),
		peakActive:      series(device, caller, KeyState.String("active")),
		peakReserved:    series(device, caller, KeyState.String("reserved")),
		h2d:             series(device, caller, KeyDirection.String("h2d")),
		d2h:             series(device, caller, KeyDirection.String("d2h")),
		device:          series(device, caller),
	}
	return m.meter.RegisterCallback(s.observe, m.all...)
}

func (s *transferSeries) observe(_ context.Context, o metric.Observer) error {
	stats := s.pool.Stats()
	o.ObserveInt64(s.usage, stats.ActiveBytes.Current, s.active...)
	o.ObserveInt64(s.usage, stats.CachedBytes.Current, s.cached...)
	o.ObserveInt64(s.peak, stats.ActiveBytes.Peak, s.peakActive...)
	o.ObserveInt64(s.peak, stats.AllocatedBytes.Peak, s.peakReserved...)
	o.ObserveInt64(s.io, stats.H2DBytes, s.h2d...)
	o.ObserveInt64(s.io, stats.D2HBytes, s.d2h...)
	o.ObserveInt64(s.copies, stats.H2DCopies, s.h2d...)
	o.ObserveInt64(s.copies, stats.D2HCopies, s.d2h...)
	o.ObserveInt64(s.pending, stats.Pending, s.device...)
	return nil
}
