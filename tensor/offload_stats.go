package tensor

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache"
)

// OffloadStats is what an [Offloader] has done and holds.
type OffloadStats struct {
	// Offloaded and OffloadedBytes are the memory that is on the host and not on the device now, with its peak and the sums of what went and came; what
	// tensors share counts once.
	Offloaded, OffloadedBytes memcache.Stat
	// PinnedBytes is the pinned memory that the offloader holds: what has offloaded bytes in it, what FetchKeep has left to tensors, and what it keeps for reuse. It is never
	// over OffloadConfig.MaxBytes.
	PinnedBytes memcache.Stat
	// Stayed counts what was to be offloaded and found no pinned memory, StayedBytes its bytes.
	Stayed, StayedBytes int64
	// Unchanged counts what was offloaded without a copy, since it had not been written after FetchKeep.
	Unchanged int64
	// Prefetched counts what was brought back ahead of its use, of all that Fetch and FetchKeep have brought back, which Fetched counts.
	Prefetched, Fetched int64
}

// Stats returns the offloader's statistics. Sizes are in bytes.
func (o *Offloader) Stats() OffloadStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stats
}

// count changes the statistics.
func (o *Offloader) count(change func(*OffloadStats)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	change(&o.stats)
	for _, s := range [...]memcache.Stat{o.stats.Offloaded, o.stats.OffloadedBytes, o.stats.PinnedBytes} {
		if s.Current < 0 {
			accounting.Broken("tensor offloader", "offloaded tensors and bytes", s.Current)
		}
	}
}

// back takes so many bytes off what is offloaded.
func back(s *OffloadStats, bytes int64) {
	move(&s.Offloaded, -1)
	move(&s.OffloadedBytes, -bytes)
}

// move adds d to a statistic.
func move(s *memcache.Stat, d int64) {
	s.Current += d
	s.Peak = max(s.Peak, s.Current)
	if d > 0 {
		s.Allocated += d
	} else {
		s.Freed -= d
	}
}

// String has the memory that is offloaded now.
func (o *Offloader) String() string {
	s := o.Stats()
	return fmt.Sprintf("offloader of %s: %d bytes of %d tensors", o.rt.Device().Name(), s.OffloadedBytes.Current, s.Offloaded.Current)
}
