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
	usage, limit, reserved, private, largestFree, category, peak, segments, allocated, allocations, retries metric.Int64Observable

	utilization metric.Float64Observable
}

func newMemoryMetrics(meter metric.Meter) (*memoryMetrics, error) {
	m := &memoryMetrics{instruments: instruments{meter: meter}}
	m.usage = m.upDown("cistern.device.memory.usage", "By", "Device memory held from the driver, by state.")
	m.limit = m.upDown("cistern.device.memory.limit", "By", "Device memory that may be held from the driver.")
	m.utilization = m.share("cistern.device.memory.utilization", "The share of the limit that is held from the driver, by state.")
	m.reserved = m.upDown("cistern.device.memory.reserved", "By", "Device memory held from the driver.")
	m.private = m.upDown("cistern.device.memory.private", "By", "Device memory held from the driver by private pools, a part of the reserved memory.")
	m.largestFree = m.gauge("cistern.device.memory.largest_free", "By", "The largest free block outside of private pools, on any stream.")
	m.category = m.upDown("cistern.device.memory.category.usage", "By", "Allocated device memory, by category of its data.")
	m.peak = m.gauge("cistern.device.memory.peak", "By", "The most device memory since the peaks were reset.")
	m.segments = m.upDown("cistern.device.segment.held", "{segment}", "Segments held from the driver.")
	m.allocated = m.counter("cistern.device.allocated", "By", "Device memory allocated, in total.")
	m.allocations = m.counter("cistern.device.allocations", "{allocation}", "Requests for device memory, by result.")
	m.retries = m.counter("cistern.device.oom.retries", "{retry}", "Driver allocations retried after a flush of cached memory.")
	return m, m.err()
}

// memoryStates are the states of memory. Their bytes add up to the reserved bytes. graph is the
// memory that private pools keep for graphs (memcache.Stats.GraphBytes), which split and cached
// don't include.
var memoryStates = [...]string{"allocated", "pending", "split", "cached", "graph"}

// memorySeries are the series of one cache.
type memorySeries struct {
	*memoryMetrics
	cache *memcache.Cache
	pools [2]poolSeries

	states                      [len(memoryStates)][]metric.ObserveOption
	categories                  [memcache.CategoryWorkspace + 1][]metric.ObserveOption
	peakAllocated, peakReserved []metric.ObserveOption
	hit, miss, oom, device      []metric.ObserveOption
}

// poolSeries are the series of the small or the large pool.
type poolSeries struct {
	pool   []metric.ObserveOption
	states [len(memoryStates)][]metric.ObserveOption
}

func (m *memoryMetrics) register(of *Tracer, cache *memcache.Cache, caller []attribute.KeyValue) (metric.Registration, error) {
	series := newSeries(of.identity(cache.Device()), caller)
	s := &memorySeries{
		memoryMetrics: m,
		cache:         cache,
		peakAllocated: series.with(KeyState.String("allocated")),
		peakReserved:  series.with(KeyState.String("reserved")),
		hit:           series.with(KeyResult.String("hit")),
		miss:          series.with(KeyResult.String("miss")),
		oom:           series.with(KeyResult.String("oom")),
		device:        series.with(),
	}
	for c := range s.categories {
		s.categories[c] = series.with(category(memcache.Category(c)))
	}
	for i, state := range memoryStates {
		s.states[i] = series.with(KeyState.String(state))
		for p, name := range []string{"small", "large"} {
			s.pools[p].pool = series.with(KeyPool.String(name))
			s.pools[p].states[i] = series.with(KeyPool.String(name), KeyState.String(state))
		}
	}
	return m.meter.RegisterCallback(s.observe, m.all...)
}

func (s *memorySeries) observe(_ context.Context, o metric.Observer) error {
	// A reset of the statistics must not make totals fall, so they are those since the beginning.
	stats := s.cache.Stats().Since(memcache.Stats{})
	small := s.observePool(o, &stats, &s.pools[0], stats.GraphBytes.SmallPool, stats.GraphSplitBytes.SmallPool,
		func(a memcache.StatArray) memcache.Stat { return a.SmallPool })
	large := s.observePool(o, &stats, &s.pools[1], stats.GraphBytes.LargePool, stats.GraphSplitBytes.LargePool,
		func(a memcache.StatArray) memcache.Stat { return a.LargePool })
	smallFree, largeFree := s.cache.LargestFree()
	o.ObserveInt64(s.largestFree, smallFree, s.pools[0].pool...)
	o.ObserveInt64(s.largestFree, largeFree, s.pools[1].pool...)
	limit := s.cache.MemoryLimit()
	o.ObserveInt64(s.limit, limit, s.device...)
	if limit > 0 {
		for i := range memoryStates {
			o.ObserveFloat64(s.utilization, float64(small[i]+large[i])/float64(limit), s.states[i]...)
		}
	}
	s.observeCategories(o)
	o.ObserveInt64(s.peak, stats.AllocatedBytes.All.Peak, s.peakAllocated...)
	o.ObserveInt64(s.peak, stats.ReservedBytes.All.Peak, s.peakReserved...)
	// A request that failed is a miss too.
	o.ObserveInt64(s.allocations, stats.Hits, s.hit...)
	o.ObserveInt64(s.allocations, stats.Misses-stats.NumOOMs, s.miss...)
	o.ObserveInt64(s.allocations, stats.NumOOMs, s.oom...)
	o.ObserveInt64(s.retries, stats.NumAllocRetries, s.device...)
	return nil
}

// observePool returns the bytes in each state. graphs are held for graphs, and graphSplit is the
// split part of them.
func (s *memorySeries) observePool(o metric.Observer, stats *memcache.Stats, p *poolSeries, graphs, graphSplit int64,
	of func(memcache.StatArray) memcache.Stat) (bytes [len(memoryStates)]int64) {
	reserved, active := of(stats.ReservedBytes).Current, of(stats.ActiveBytes).Current
	allocated, split := of(stats.AllocatedBytes).Current, of(stats.InactiveSplitBytes).Current
	bytes = [...]int64{allocated, active - allocated, split - graphSplit, reserved - active - split - (graphs - graphSplit), graphs}
	for i, n := range bytes {
		o.ObserveInt64(s.usage, n, p.states[i]...)
	}
	o.ObserveInt64(s.reserved, reserved, p.pool...)
	private := int64(0)
	for _, a := range stats.ReservedBytesByPrivatePools {
		private += of(a).Current
	}
	o.ObserveInt64(s.private, private, p.pool...)
	o.ObserveInt64(s.segments, of(stats.Segment).Current, p.pool...)
	o.ObserveInt64(s.allocated, of(stats.AllocatedBytes).Allocated, p.pool...)
	return bytes
}

// observeCategories walks the blocks in use.
func (s *memorySeries) observeCategories(o metric.Observer) {
	for c, n := range s.cache.AllocatedByCategory() {
		o.ObserveInt64(s.category, n, s.categories[c]...)
	}
}
