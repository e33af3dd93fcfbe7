package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/cistern-ml/cistern/memcache"
)

// memoryMetrics are the instruments that all watched caches share.
type memoryMetrics struct {
	instruments
	usage, reserved, peak, segments, allocated, allocations, retries metric.Int64Observable
}

func newMemoryMetrics(meter metric.Meter) (*memoryMetrics, error) {
	m := &memoryMetrics{instruments: instruments{meter: meter}}
	m.usage = m.upDown("cistern.device.memory.usage", "By", "Device memory held from the driver, by what it is doing.")
	m.reserved = m.upDown("cistern.device.memory.reserved", "By", "Device memory held from the driver.")
	m.peak = m.gauge("cistern.device.memory.peak", "By", "The most device memory since the peaks were reset.")
	m.segments = m.upDown("cistern.device.segment.count", "{segment}", "Allocations held from the driver.")
	m.allocated = m.counter("cistern.device.allocated", "By", "Device memory handed out.")
	m.allocations = m.counter("cistern.device.allocations", "{allocation}", "Requests for device memory, by result.")
	m.retries = m.counter("cistern.device.oom.retries", "{retry}", "Driver allocations tried again after a flush.")
	return m, m.err()
}

// memorySeries are the series of one cache.
type memorySeries struct {
	*memoryMetrics
	cache *memcache.Cache
	pools [2]poolSeries

	peakAllocated, peakReserved []metric.ObserveOption
	hit, miss, oom, device      []metric.ObserveOption
}

// poolSeries are the series of the small or the large pool.
type poolSeries struct {
	pool                              []metric.ObserveOption
	allocated, pending, split, cached []metric.ObserveOption
}

func (m *memoryMetrics) register(cache *memcache.Cache, caller []attribute.KeyValue) (metric.Registration, error) {
	device := cache.Device().Name()
	s := &memorySeries{
		memoryMetrics: m,
		cache:         cache,
		peakAllocated: series(device, caller, KeyState.String("allocated")),
		peakReserved:  series(device, caller, KeyState.String("reserved")),
		hit:           series(device, caller, KeyResult.String("hit")),
		miss:          series(device, caller, KeyResult.String("miss")),
		oom:           series(device, caller, KeyResult.String("oom")),
		device:        series(device, caller),
	}
	for i, name := range []string{"small", "large"} {
		pool := KeyPool.String(name)
		s.pools[i].pool = series(device, caller, pool)
		s.pools[i].allocated = series(device, caller, pool, KeyState.String("allocated"))
		s.pools[i].pending = series(device, caller, pool, KeyState.String("pending"))
		s.pools[i].split = series(device, caller, pool, KeyState.String("split"))
		s.pools[i].cached = series(device, caller, pool, KeyState.String("cached"))
	}
	return m.meter.RegisterCallback(s.observe, m.all...)
}

func (s *memorySeries) observe(_ context.Context, o metric.Observer) error {
	stats := s.cache.Stats().Since(memcache.Stats{}) // totals must not fall, and a reset of the statistics makes those
	s.observePool(o, &stats, &s.pools[0], func(a memcache.StatArray) memcache.Stat { return a.SmallPool })
	s.observePool(o, &stats, &s.pools[1], func(a memcache.StatArray) memcache.Stat { return a.LargePool })
	o.ObserveInt64(s.peak, stats.AllocatedBytes.All.Peak, s.peakAllocated...)
	o.ObserveInt64(s.peak, stats.ReservedBytes.All.Peak, s.peakReserved...)
	// A request that failed is a miss too.
	o.ObserveInt64(s.allocations, stats.Hits, s.hit...)
	o.ObserveInt64(s.allocations, stats.Misses-stats.NumOOMs, s.miss...)
	o.ObserveInt64(s.allocations, stats.NumOOMs, s.oom...)
	o.ObserveInt64(s.retries, stats.NumAllocRetries, s.device...)
	return nil
}

func (s *memorySeries) observePool(o metric.Observer, stats *memcache.Stats, p *poolSeries,
	of func(memcache.StatArray) memcache.Stat) {
	reserved, active := of(stats.ReservedBytes).Current, of(stats.ActiveBytes).Current
	allocated, split := of(stats.AllocatedBytes).Current, of(stats.InactiveSplitBytes).Current
	o.ObserveInt64(s.usage, allocated, p.allocated...)
	o.ObserveInt64(s.usage, active-allocated, p.pending...)
	o.ObserveInt64(s.usage, split, p.split...)
	o.ObserveInt64(s.usage, reserved-active-split, p.cached...)
	o.ObserveInt64(s.reserved, reserved, p.pool...)
	o.ObserveInt64(s.segments, of(stats.Segment).Current, p.pool...)
	o.ObserveInt64(s.allocated, of(stats.AllocatedBytes).Allocated, p.pool...)
}
