package transfer

import (
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// Stats is what a [Pool] has done and holds. The names are those of PyTorch's host_memory_stats. A Stat has
// the present value, its peak, and the sums of what went up and down.
type Stats struct {
	// Allocations counts the pinned allocations that the pool owns: active and cached ones.
	Allocations memcache.Stat
	// AllocatedBytes is their size.
	AllocatedBytes memcache.Stat
	// ActiveRequests counts the buffers that are out: from Get to Release.
	ActiveRequests memcache.Stat
	// ActiveBytes is the size of their allocations.
	ActiveBytes memcache.Stat
	// RequestedBytes is the sum of what was asked for: ActiveBytes without the waste of rounding.
	RequestedBytes memcache.Stat
	// CachedBytes is the size of the allocations that wait for the next Get, Pending ones included.
	CachedBytes memcache.Stat

	// Hits counts the Gets that were served from the cache, Misses those that needed the driver.
	Hits, Misses int64
	// HostAllocs and HostFrees count driver calls, HostAllocTime and HostFreeTime is what they took.
	HostAllocs, HostFrees       int64
	HostAllocTime, HostFreeTime time.Duration

	// Pending counts the released buffers that wait for copies to be done.
	Pending int64

	// H2DCopies and D2HCopies count copies when they are queued, H2DBytes and D2HBytes their bytes.
	H2DCopies, D2HCopies int64
	H2DBytes, D2HBytes   int64
}

// Stats returns the pool's statistics. It polls the copies that released buffers wait for.
func (p *Pool) Stats() Stats {
	p.mu.Lock()
	p.collect()
	st := p.stats
	p.mu.Unlock()
	st.H2DCopies, st.H2DBytes = p.copied[OpH2D].copies.Load(), p.copied[OpH2D].bytes.Load()
	st.D2HCopies, st.D2HBytes = p.copied[OpD2H].copies.Load(), p.copied[OpD2H].bytes.Load()
	return st
}

// ResetPeakStats sets every peak to the present value (reset_peak_host_memory_stats).
func (p *Pool) ResetPeakStats() {
	p.mu.Lock()
	defer p.mu.Unlock()
	st := &p.stats
	for _, s := range [...]*memcache.Stat{
		&st.Allocations, &st.AllocatedBytes, &st.ActiveRequests, &st.ActiveBytes, &st.RequestedBytes, &st.CachedBytes,
	} {
		s.Peak = s.Current
	}
}

func up(s *memcache.Stat, n int64) {
	s.Current += n
	s.Allocated += n
	s.Peak = max(s.Peak, s.Current)
}

func down(s *memcache.Stat, n int64) {
	s.Current -= n
	s.Freed += n
}
