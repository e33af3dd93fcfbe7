package memcache

import (
	"sync"

	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// The statistics of a private pool. Each operation has a delta for the cache's statistics
// (usage.go). For a block in a pool the same delta is counted here as well, under one lock for each
// pool. Blocks of the default pool pay one comparison. Many streams that allocate from one pool at
// once contend for its lock.

// poolCounts holds the statistics of one pool since its creation. Its lock is the last one in the
// lock order.
type poolCounts struct {
	mu    sync.Mutex
	stats Stats
}

// countsOf returns the counts of a pool; nil for the default pool.
func countsOf(p *placement.Pool) *poolCounts {
	if p == nil {
		return nil
	}
	c, _ := p.Tag.(*poolCounts)
	return c
}

// countPool counts the delta of a free, if the chunk is in a private pool. It is small enough to be
// inlined in every free.
func countPool(m *placement.Chunk, d *delta) {
	if p := m.Segment().Pool(); p != nil {
		countIn(p, m.Kind(), d)
	}
}

// countIn counts the delta of an operation. The lock of the shard is held.
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

// reserved adds a change of segments and of reserved bytes.
func (c *poolCounts) reserved(k placement.Kind, segments, bytes int64) {
	if c == nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.Segment.change(k, segments)
	c.stats.ReservedBytes.change(k, bytes)
}

// change adds n, or subtracts -n.
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

// Stats returns the statistics of the pool's own memory: the current, peak and total blocks, bytes
// and segments since NewPool. They are exact, and part of the cache's statistics. Figures that
// concern no memory, such as hits, failures and driver calls, are counted only for the cache and
// are 0 here, and so is OversizeSegments. Blocks that the pool lends ([PoolOptions.UseOnOOM])
// count. [Stats.Summary] formats them as a table. The peaks are the pool's own, and need not
// coincide in time with other pools' peaks. The statistics remain after the cache's Close. For the
// nil Pool they are zero.
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

// ResetPeakStats sets every peak of the pool's Stats to the current value. It does not affect the
// peaks of the cache, and the cache's ResetPeakStats does not affect those of the pool.
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

// addFree adds the pool's free bytes, and the part of them that is split.
func (c *poolCounts) addFree(free, split *PoolBytes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for k := placement.Small; k <= placement.Large; k++ {
		free.add(k, c.stats.ReservedBytes.ofKind(k).Current-c.stats.ActiveBytes.ofKind(k).Current)
		split.add(k, c.stats.InactiveSplitBytes.ofKind(k).Current)
	}
}
