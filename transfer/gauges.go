package transfer

import (
	"github.com/cistern-ml/cistern/internal/peaks"
	"github.com/cistern-ml/cistern/memcache"
)

// The gauges of a pool's ledger (package peaks). The ledger tracks their peaks and enforces the
// limits of cached bytes (Config.MaxCachedBytes) and of cached buffers of each class
// (Config.MaxCachedBuffers).
const (
	gaugeRequests       = iota // buffers that are out
	gaugeRequestedBytes        // bytes that were asked for
	gaugeActiveBytes           // bytes of allocations that are out, or released and not idle yet
	gaugeCachedBytes           // bytes of idle allocations
	gaugeAllocations           // active and cached ones
	gaugeAllocatedBytes        // their bytes
	gaugeClass                 // the first of classes: idle allocations of a class
)

// newLedger makes the ledger of a pool that may cache budget bytes, and perClass buffers of each
// class.
func newLedger(budget, perClass int64) *peaks.Ledger {
	limits := make([]int64, gaugeClass+classes)
	for g := range limits {
		limits[g] = peaks.NoLimit
	}
	limits[gaugeCachedBytes] = budget
	for class := range classes {
		limits[gaugeClass+class] = perClass
	}
	return peaks.New(limits...)
}

// total returns a gauge's statistic. All shards are locked.
func (c *cache) total(gauge int) memcache.Stat {
	t := c.ledger.Total(gauge)
	return memcache.Stat{Current: t.Current, Peak: t.Peak, Allocated: t.Added, Freed: t.Added - t.Current}
}

// countOut counts an idle slab as out.
func (sh *shard) countOut(s *slab, requested int64) { sh.move(s, 1, requested) }

// countReturned undoes countOut, if the limits allow one more idle slab.
func (sh *shard) countReturned(s *slab, requested int64) bool { return sh.move(s, -1, -requested) }

// move counts a slab's change between idle and out: buffers is 1 if it goes out, and -1 if it
// becomes idle.
func (sh *shard) move(s *slab, buffers, requested int64) bool {
	bytes := buffers * s.size()
	return sh.Add(peaks.Change{Gauge: gaugeRequests, N: buffers}, peaks.Change{Gauge: gaugeRequestedBytes, N: requested},
		peaks.Change{Gauge: gaugeActiveBytes, N: bytes}, peaks.Change{Gauge: gaugeCachedBytes, N: -bytes},
		peaks.Change{Gauge: gaugeClass + s.class, N: -buffers})
}

// countNew counts a new slab that is out.
func (sh *shard) countNew(s *slab, requested int64) {
	sh.Add(peaks.Change{Gauge: gaugeRequests, N: 1}, peaks.Change{Gauge: gaugeRequestedBytes, N: requested},
		peaks.Change{Gauge: gaugeActiveBytes, N: s.size()}, peaks.Change{Gauge: gaugeAllocations, N: 1},
		peaks.Change{Gauge: gaugeAllocatedBytes, N: s.size()})
}

// countReleased counts a buffer as released while its slab is still active.
func (sh *shard) countReleased(requested int64) {
	sh.Add(peaks.Change{Gauge: gaugeRequests, N: -1}, peaks.Change{Gauge: gaugeRequestedBytes, N: -requested})
}

// countStopped changes one gauge. All shards are locked.
func (sh *shard) countStopped(gauge int, n int64) { sh.AddStopped(peaks.Change{Gauge: gauge, N: n}) }

// idleChanges returns the changes of the gauges when an active slab becomes idle.
func idleChanges(s *slab) [3]peaks.Change {
	return [...]peaks.Change{{Gauge: gaugeActiveBytes, N: -s.size()}, {Gauge: gaugeCachedBytes, N: s.size()}, {Gauge: gaugeClass + s.class, N: 1}}
}
