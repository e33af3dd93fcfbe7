package transfer

import (
	"math"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// Peaks are exact, though no counter is shared: each shard has a quota of each peak and counts
// within it, under its own lock. The sum of the quotas is the peak. A shard that would exceed its
// quota locks all shards, takes what the others do not use, and raises the peak only where that is
// not enough: then the true sum is at a new maximum. One counter for all, even an atomic one, would
// be a cache line that every Get and Release fights for: that is what limits a pool to one
// processor.
//
// What it costs: a Get in a shard without quota takes all locks, and processors that hand out and
// take back all the time would take one quota from each other for ever; see maxQuotaTakes for the
// end of that, where peaks may be too high by what two processors use at about the same time.

// gauge is one of the statistics that a shard keeps.
type gauge uint8

const (
	gaugeRequests       gauge = iota // buffers that are out
	gaugeActiveBytes                 // bytes of allocations that are out, or released and not idle yet
	gaugeRequestedBytes              // bytes that were asked for
	gaugeCachedBytes                 // bytes of idle allocations
	gauges
)

// delta is what an operation does to the gauges.
type delta [gauges]int64

// usage is a shard's gauges, and its share of the peaks. The sum of the shards' quotas is the peak,
// and no shard is over its quota; so no sum of uses exceeds the peak, whatever the shards do at the
// same time. What would break it runs with all shards locked: see raisePeaks. A use may be
// negative: a buffer is released in another shard than it was handed out in.
type usage struct {
	used         delta     // now
	added        delta     // the sum of all that was added
	quota        delta     // of the peaks
	quotaTakenAt time.Time // when another shard took a part of quota
	quotaTakes   int       // in a row, that were noticed within a moment, while somebody waited for another
	waitsSeen    int64     // of the pool, at the last one
}

// Two shards whose processors hand out and take back all the time would take one quota from each
// other for ever, where the peak is less than both use. After so many times within a moment each,
// what they use counts as simultaneous. Where nobody ever waits there is one goroutine, or one at a
// time, and peaks are exact.
const (
	maxQuotaTakes = 8
	moment        = time.Millisecond
)

// handOutDelta is what handing out a slab does.
func handOutDelta(size, requested int64) delta {
	return delta{gaugeRequests: 1, gaugeActiveBytes: size, gaugeRequestedBytes: requested}
}

// fits reports whether d leaves every gauge within its quota.
func (u *usage) fits(d *delta) bool {
	beyond := func(g gauge) int64 { return u.quota[g] - u.used[g] - d[g] } // negative if it is
	return beyond(gaugeRequests)|beyond(gaugeActiveBytes)|beyond(gaugeRequestedBytes)|beyond(gaugeCachedBytes) >= 0
}

// apply changes the gauges. Unless d fits, all shards are locked and raisePeaks follows.
func (u *usage) apply(d *delta) {
	for g, n := range d {
		u.used[g] += n
		u.added[g] += max(n, 0)
	}
}

// raisePeaks makes the quotas of sh fit again: with what other shards don't use and, if that is not
// enough, by raising the peak. The peak of what is cached stays within the budget, as the bytes do.
// All shards are locked.
func (p *Pool) raisePeaks(sh *shard) {
	// Did another shard take a part of this quota just now, while somebody waited? Then the two hand out at the same time.
	now, waits := time.Now(), p.lockAllWaits.Load()
	if now.Sub(sh.quotaTakenAt) > moment {
		sh.quotaTakes = 0
	} else if waits != sh.waitsSeen {
		sh.quotaTakes++
	}
	sh.waitsSeen = waits
	for g := range gauges {
		missing := sh.used[g] - sh.quota[g]
		// The budget bounds the peak of what is cached, and a quota beyond it is no one's: there the others must give.
		most := int64(math.MaxInt64)
		if g == gaugeCachedBytes {
			most = p.budget
		}
		for _, o := range p.shards {
			// What is negative was handed out in another shard: it is no use that comes back.
			take := sh.quotaTakes < maxQuotaTakes || o.used[g] < 0 || missing > most-p.peaks[g]
			if n := min(missing, o.quota[g]-o.used[g]); n > 0 && take {
				o.quota[g] -= n
				sh.quota[g] += n
				missing -= n
				o.quotaTakenAt = now
			}
		}
		// All that the others don't use is not enough: the sum is at a new maximum.
		if missing > 0 {
			sh.quota[g] += missing
			p.peaks[g] += missing
		}
	}
}

// total is the sum of a gauge over the shards, which are all locked.
func (p *Pool) total(g gauge) memcache.Stat {
	t := memcache.Stat{Peak: p.peaks[g]}
	for _, sh := range p.shards {
		t.Current += sh.used[g]
		t.Allocated += sh.added[g]
	}
	t.Freed = t.Allocated - t.Current
	return t
}
