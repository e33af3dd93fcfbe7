package tensor

import (
	"fmt"

	"github.com/cistern-ml/cistern/internal/accounting"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// OffloadStats are the statistics of an [Offloader].
type OffloadStats = transfer.OffloadStats

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

// back subtracts a storage that is no longer offloaded.
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

// String reports the memory that is offloaded now.
func (o *Offloader) String() string {
	s := o.Stats()
	return fmt.Sprintf("offloader of %s: %d bytes of %d tensors", o.rt.Device().Name(), s.OffloadedBytes.Current, s.Offloaded.Current)
}
