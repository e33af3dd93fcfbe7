package memcache

import (
	"sync"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The statistics of a private pool. What an operation changes is known as a delta for the cache's
// own (usage); of a block in a pool the same delta is counted here as well, behind one lock for
// each pool. The blocks of the default pool, which has no counts, pay one comparison: a caller that
// allocates much from a pool from many streams at once pays the lock.

// poolCounts are the statistics of one pool since it was made. Its lock is the last one that anybody takes.
type poolCounts struct {
	mu    sync.Mutex
	stats Stats
}

// countsOf is where a pool is counted; nil for the default pool.
func countsOf(p *placement.Pool) *poolCounts {
	if p == nil {
		return nil
	}
	c, _ := p.Tag.(*poolCounts)
	return c
}

// countPool counts what the end of a hand-out changes, if the chunk is in a private pool: inlined, for every free comes by.
func countPool(m *placement.Chunk, d *delta) {
	if p := m.Segment().Pool(); p != nil {
		countIn(p, m.Kind(), d)
	}
}

// countIn counts what an operation changes. The lock of the shard is held.
func countIn(p *placement.Pool, k placement.Kind, d *delta) {
	c := countsOf(p)
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	s := &c.stats
	for g, a := range [...]*StatArray{
		gaugeAllocatedBlocks: &s.Allocation, gaugeAllocatedBytes: &s.AllocatedBytes,
		gaugeActiveBlocks: &s.Active, gaugeActiveBytes: &s.ActiveBytes,
		gaugeInactiveSplitBlocks: &s.InactiveSplit, gaugeInactiveSplitBytes: &s.InactiveSplitBytes,
		gaugeRequestedBytes: &s.RequestedBytes,
	} {
		a.change(k, d[g])
	}
	s.OversizeAllocations.change(d[gaugeOversizeBlocks])
}

// reserved adds segments, or takes them away, and bytes of the driver's.
func (c *poolCounts) reserved(k placement.Kind, segments, bytes int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Segment.change(k, segments)
	c.stats.ReservedBytes.change(k, bytes)
}

// change is add or sub.
func (s *Stat) change(n int64) {
	if n >= 0 {
		s.add(n)
	} else {
		s.sub(-n)
	}
}

func (a *StatArray) change(k placement.Kind, n int64) {
	a.All.change(n)
	a.ofKind(k).change(n)
}

// Stats are the statistics of the pool's own memory, exact as the cache's, of which they are a part: blocks, bytes and segments, now, at most, and in
// all since NewPool. What concerns no memory, such as hits, failures and calls of the driver, is the cache's alone, and 0 here; so are OversizeSegments.
// A block that the pool lends ([PoolOptions.UseOnOOM]) counts. [Stats.Summary] makes a table of them. The peaks are of the pool for itself: those of
// several pools need not have been at one time. After the cache's Close they stay. For the nil Pool they are zero.
func (p *Pool) Stats() Stats {
	if p == nil {
		return Stats{}
	}
	return countsOf(&p.place).read()
}

func (c *poolCounts) read() Stats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats
}

// ResetPeakStats lets the peaks of Stats begin anew, from what is in use now. Those of the cache are unaffected, as the cache's ResetPeakStats leaves the
// pool's alone.
func (p *Pool) ResetPeakStats() {
	if p == nil {
		return
	}
	c := countsOf(&p.place)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.stats.quantities() {
		s.Peak = s.Current
	}
}

// addFree adds what the pool has free, and the part of it that is split.
func (c *poolCounts) addFree(free, split *PoolBytes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := placement.Small; k <= placement.Large; k++ {
		free.add(k, c.stats.ReservedBytes.ofKind(k).Current-c.stats.ActiveBytes.ofKind(k).Current)
		split.add(k, c.stats.InactiveSplitBytes.ofKind(k).Current)
	}
}
