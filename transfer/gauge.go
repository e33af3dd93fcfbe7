package transfer

import (
	"math"
	"time"

	"github.com/cistern-ml/cistern/memcache"
)

// gauge is one of the statistics that a shard keeps.
type gauge uint8

const (
	gaugeRequests  gauge = iota // buffers that are out
	gaugeActive                 // bytes of allocations that are out, or released and not idle yet
	gaugeRequested              // bytes that were asked for
	gaugeCached                 // bytes of idle allocations
	gauges
)

// change is what an operation does to the gauges.
type change [gauges]int64

// levels are a shard's gauges, and its share of the peaks. The sum of the shards' quotas is the peak, and no shard is
// over its quota; so no sum of uses exceeds the peak, whatever the shards do at the same time. What would break it runs with
// all shards locked: see raise. A use may be negative: a buffer is released in another shard than it was handed out in.
type levels struct {
	used, up, quota change
	robbed          time.Time // when another shard took a part of quota
	robberies       int       // in a row, that were noticed within a moment, while somebody waited for another
	waits           int64     // of the pool, at the last one
}

// Two shards whose processors hand out and take back all the time would take one quota from each other for ever, where the
// peak is less than both use. After so many times within a moment each, what they use counts as simultaneous. Where nobody
// ever waits there is one goroutine, or one at a time, and peaks are exact.
const (
	manyRobberies = 8
	moment        = time.Millisecond
)

func handedOut(size, requested int64) change {
	return change{gaugeRequests: 1, gaugeActive: size, gaugeRequested: requested}
}

// fits reports whether the change leaves every gauge within its quota.
func (l *levels) fits(d *change) bool {
	beyond := func(g gauge) int64 { return l.quota[g] - l.used[g] - d[g] } // negative if it is
	return beyond(gaugeRequests)|beyond(gaugeActive)|beyond(gaugeRequested)|beyond(gaugeCached) >= 0
}

// apply changes the gauges. Unless the change fits, all shards are locked and raise follows.
func (l *levels) apply(d *change) {
	for g, n := range d {
		l.used[g] += n
		l.up[g] += max(n, 0)
	}
}

// raise makes the quotas of sh fit again: with what other shards don't use and, if that is not enough, by raising the
// peak. The peak of what is cached stays within the budget, as the bytes do. All shards are locked.
func (p *Pool) raise(sh *shard) {
	now, waits := time.Now(), p.waits.Load()
	if now.Sub(sh.robbed) > moment {
		sh.robberies = 0
	} else if waits != sh.waits {
		sh.robberies++
	}
	sh.waits = waits
	for g := range gauges {
		missing := sh.used[g] - sh.quota[g]
		most := int64(math.MaxInt64)
		if g == gaugeCached {
			most = p.budget
		}
		for _, o := range p.shards {
			// What is negative was handed out in another shard: it is no use that comes back.
			rob := sh.robberies < manyRobberies || o.used[g] < 0 || missing > most-p.peaks[g]
			if n := min(missing, o.quota[g]-o.used[g]); n > 0 && rob {
				o.quota[g] -= n
				sh.quota[g] += n
				missing -= n
				o.robbed = now
			}
		}
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
		t.Allocated += sh.up[g]
	}
	t.Freed = t.Allocated - t.Current
	return t
}
