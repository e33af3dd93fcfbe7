package transfer

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/invariants"
	"github.com/cistern-ml/cistern/memcache"
)

// Stats are the statistics of a [Pool], under the names of PyTorch's host_memory_stats. A Stat has
// the current value, its peak, and the sums of its increases and decreases. In each Stats
// AllocatedBytes is the sum of ActiveBytes and CachedBytes, and HeldBytes is at least that, even
// while other goroutines use the pool. Peaks are exact. Those of HeldBytes and CachedBytes never
// exceed Config.MaxBytes and Config.MaxCachedBytes.
type Stats struct {
	// Allocations counts the pinned allocations that the pool owns: active and cached ones.
	Allocations memcache.Stat
	// AllocatedBytes is their size.
	AllocatedBytes memcache.Stat
	// HeldBytes is the size of what the driver holds for the pool: AllocatedBytes, memory that it
	// is freeing, and memory that it refused to free. Config.MaxBytes limits HeldBytes together
	// with memory that is being allocated.
	HeldBytes memcache.Stat
	// ActiveRequests counts the buffers that are out: from Get to Release.
	ActiveRequests memcache.Stat
	// ActiveBytes is the size of their allocations, and of those of released buffers until the pool
	// finds their copies done (Pending), as in PyTorch.
	ActiveBytes memcache.Stat
	// RequestedBytes is the sum of the requested sizes of the buffers that are out.
	RequestedBytes memcache.Stat
	// CachedBytes is the size of the allocations that are ready for the next Get.
	CachedBytes memcache.Stat

	// Hits counts the Gets that were served from the cache, Misses those that needed the driver.
	Hits, Misses int64
	// HostAllocs and HostFrees count driver calls, failed ones included.
	HostAllocs, HostFrees int64
	// HostAllocTime and HostFreeTime are the durations of these calls.
	HostAllocTime, HostFreeTime DurationStat

	// Pending counts the released buffers whose copies are not known to be done.
	Pending int64

	// DroppedBatches counts the batches that were dropped without Close, so that the garbage
	// collector gave their memory back.
	DroppedBatches int64

	// AccountingFaults counts statistics that were found wrong, which is a bug of this package. The
	// first one is logged (log/slog), and EmptyCache or Close returns it as an error.
	AccountingFaults int64

	// Registered counts the bytes that [Pool.Register] has registered.
	Registered memcache.Stat

	// H2DCopies, D2HCopies and D2DCopies count copies when they are queued, H2DBytes, D2HBytes and
	// D2DBytes their bytes.
	H2DCopies, D2HCopies, D2DCopies int64
	H2DBytes, D2HBytes, D2DBytes    int64
}

// String returns the device's name and the pinned memory that is in use and cached.
func (p *Pool) String() string {
	if p == nil {
		return "transfer.Pool(nil)"
	}
	s := p.Stats()
	return fmt.Sprintf("pinned pool of %s: %d bytes in %d buffers in use, %d bytes cached", p.dev.Name(), s.ActiveBytes.Current, s.ActiveRequests.Current, s.CachedBytes.Current)
}

// Stats returns the pool's statistics. It polls the copies that released buffers wait for.
func (p *Pool) Stats() (st Stats) {
	c, d := &p.cache, &p.pinned
	c.ledger.LockAll()
	defer c.ledger.UnlockAll()
	c.pollAll()
	st.ActiveRequests, st.ActiveBytes = c.total(gaugeRequests), c.total(gaugeActiveBytes)
	st.RequestedBytes, st.CachedBytes = c.total(gaugeRequestedBytes), c.total(gaugeCachedBytes)
	st.Allocations, st.AllocatedBytes = c.total(gaugeAllocations), c.total(gaugeAllocatedBytes)
	if len(c.evicted) > 0 {
		c.excessive.Store(true)
	}
	for _, sh := range c.shards {
		st.Hits += sh.hits
		st.Misses += sh.misses
		st.Pending += sh.pending
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	st.HeldBytes, st.Registered = d.held, d.registered
	st.HostAllocs, st.HostAllocTime = d.allocTime.Count, d.allocTime
	st.HostFrees, st.HostFreeTime = d.freeTime.Count, d.freeTime
	st.DroppedBatches = p.droppedBatches.Load()
	st.H2DCopies, st.H2DBytes = p.copied[OpH2D].copies.Load(), p.copied[OpH2D].bytes.Load()
	st.D2HCopies, st.D2HBytes = p.copied[OpD2H].copies.Load(), p.copied[OpD2H].bytes.Load()
	st.D2DCopies, st.D2DBytes = p.copied[OpD2D].copies.Load(), p.copied[OpD2D].bytes.Load()
	defer func() { st.AccountingFaults = d.faults }()
	if err := st.check(); err != nil {
		d.broken("statistics", 0, err)
	}
	return st
}

// ResetPeakStats sets every peak to the present value (reset_peak_host_memory_stats).
func (p *Pool) ResetPeakStats() {
	if invariants.Enabled {
		defer p.verify()
	}
	p.cache.ledger.LockAll()
	defer p.cache.ledger.UnlockAll()
	p.cache.ledger.ResetPeaks()
	p.pinned.mu.Lock()
	defer p.pinned.mu.Unlock()
	for _, s := range [...]*memcache.Stat{&p.pinned.held, &p.pinned.registered} {
		s.Peak = s.Current
	}
}

// Map returns the statistics under the names of PyTorch's host_memory_stats, such as
// "active_bytes.peak", "num_host_alloc" and "host_alloc_time.max", with times in microseconds. Two
// faults of that function are avoided: here a free lowers the active statistics, and a peak is the
// peak of the sum, not a sum of peaks.
func (s Stats) Map() map[string]int64 {
	m := map[string]int64{"num_host_alloc": s.HostAllocs, "num_host_free": s.HostFrees}
	for name, stat := range map[string]memcache.Stat{
		"allocations": s.Allocations, "allocated_bytes": s.AllocatedBytes,
		"active_requests": s.ActiveRequests, "active_bytes": s.ActiveBytes,
	} {
		m[name+".current"], m[name+".peak"] = stat.Current, stat.Peak
		m[name+".allocated"], m[name+".freed"] = stat.Allocated, stat.Freed
	}
	for name, d := range map[string]DurationStat{"host_alloc_time": s.HostAllocTime, "host_free_time": s.HostFreeTime} {
		m[name+".total"], m[name+".count"] = d.Total.Microseconds(), d.Count
		m[name+".max"], m[name+".min"], m[name+".avg"] = d.Max.Microseconds(), d.Min.Microseconds(), d.Average().Microseconds()
	}
	return m
}

// check returns an error if the statistics contradict each other.
func (s *Stats) check() error {
	for _, c := range [...]struct {
		name string
		stat *memcache.Stat
	}{
		{"Allocations", &s.Allocations}, {"AllocatedBytes", &s.AllocatedBytes}, {"HeldBytes", &s.HeldBytes},
		{"ActiveRequests", &s.ActiveRequests}, {"ActiveBytes", &s.ActiveBytes}, {"RequestedBytes", &s.RequestedBytes},
		{"CachedBytes", &s.CachedBytes}, {"Registered", &s.Registered},
	} {
		if n := c.stat.Current; n < 0 || n > c.stat.Peak || n != c.stat.Allocated-c.stat.Freed {
			return fmt.Errorf("%s is %+v", c.name, *c.stat)
		}
	}
	if s.AllocatedBytes.Current != s.ActiveBytes.Current+s.CachedBytes.Current || s.AllocatedBytes.Current > s.HeldBytes.Current {
		return fmt.Errorf("%d bytes are allocated, %d active, %d cached and %d held", s.AllocatedBytes.Current, s.ActiveBytes.Current,
			s.CachedBytes.Current, s.HeldBytes.Current)
	}
	return nil
}
