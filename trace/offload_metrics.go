package trace

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// offloadMetrics are the instruments that all watched offloaders share.
type offloadMetrics struct {
	instruments
	usage, pinned, moved metric.Int64Observable
}

func newOffloadMetrics(meter metric.Meter) (*offloadMetrics, error) {
	m := &offloadMetrics{instruments: instruments{meter: meter}}
	m.usage = m.upDown("cistern.offload.memory.usage", "By", "Memory of tensors that are offloaded to the host.")
	m.pinned = m.upDown("cistern.offload.pinned.usage", "By", "Pinned host memory that the offloader holds, including buffers kept for reuse.")
	m.moved = m.counter("cistern.offload.moved", "By", "Memory of tensors that was moved from the device to the host.")
	return m, m.err()
}

// offloadSeries are the series of one offloader.
type offloadSeries struct {
	*offloadMetrics
	stats  func() transfer.OffloadStats
	device []metric.ObserveOption
}

func (s *offloadSeries) observe(_ context.Context, o metric.Observer) error {
	stats := s.stats()
	o.ObserveInt64(s.usage, stats.OffloadedBytes.Current, s.device...)
	o.ObserveInt64(s.pinned, stats.PinnedBytes.Current, s.device...)
	o.ObserveInt64(s.moved, stats.OffloadedBytes.Allocated, s.device...)
	return nil
}

// WatchOffload exports the statistics of an offloader of dev as metrics, as Watch does for a cache.
// stats returns them: it is the method Stats of a tensor.Offloader.
//
//	cistern.offload.memory.usage  By  of tensors, on the host and not on the device
//	cistern.offload.pinned.usage  By  of pinned memory, held for these and for reuse
//	cistern.offload.moved         By  of tensors, moved to the host, a total
func (t *Tracer) WatchOffload(dev device.Device, stats func() transfer.OffloadStats, attributes ...attribute.KeyValue) (stop func() error, err error) {
	if dev == nil || stats == nil {
		return nil, fmt.Errorf("trace: WatchOffload: %w: the device or the function stats is nil", ErrInvalid)
	}
	if t.off() {
		return func() error { return nil }, nil
	}
	s := &offloadSeries{stats: stats, device: newSeries(t.identity(dev), attributes).with()}
	return t.watch("WatchOffload", s, func() (metric.Registration, error) {
		if t.offloads == nil {
			m, err := newOffloadMetrics(t.meter)
			if err != nil {
				return nil, err
			}
			t.offloads = m
		}
		s.offloadMetrics = t.offloads
		return t.meter.RegisterCallback(s.observe, t.offloads.all...)
	})
}
