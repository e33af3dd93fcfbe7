package memcache

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// CaptureGraph calls capture, which captures a graph whose memory comes from the pool, and returns
// the memory that the graph uses. It does not begin or end the capture. Blocks that other
// goroutines allocate from the pool meanwhile count as the graph's. The graph is in the cache's
// [GraphProfile] until [GraphMemory.Close]. If capture fails, CaptureGraph returns its error and
// keeps nothing. A pool that is nil, or belongs to another cache, is an error that wraps
// [ErrInvalid].
func (c *Cache) CaptureGraph(p *Pool, capture func() error) (*GraphMemory, error) {
	if p == nil || p.cache != c || capture == nil {
		return nil, fmt.Errorf("memcache: CaptureGraph: %w: want a private pool of this cache, and a function", ErrInvalid)
	}
	scope := &Scope{ledger: &c.ledger, name: "capture"}
	before, served := p.serials(), p.Stats().Allocation.All.Allocated
	c.ledger.open(scope)
	defer scope.End()
	if err := capture(); err != nil {
		return nil, err
	}
	_, holders := scope.EndWindow(-1)
	stats := p.Stats()
	m := &GraphMemory{place: &p.place, Pool: &p.graphs, Allocations: stats.Allocation.All.Allocated - served}
	for _, n := range holders.notes {
		if n.pool == &p.place && !before[n.serial] {
			m.blocks = append(m.blocks, n)
			m.Held += n.size
		}
	}
	m.leave = c.leaver(m)
	m.Holdings = newProfile(m.blocks, peakMark{}).Holdings
	slices.SortFunc(m.blocks, func(a, b freedBlock) int { return cmp.Compare(a.ptr, b.ptr) })
	c.shards.mu.Lock()
	defer c.shards.mu.Unlock()
	c.lastGraphNumber++
	m.Number = c.lastGraphNumber
	c.openGraphs = append(c.openGraphs, m)
	p.graphs.Graphs.Add(1)
	p.graphs.Reserved.Store(stats.ReservedBytes.All.Current)
	return m, nil
}

// serials returns the serial numbers of the pool's blocks in use.
func (p *Pool) serials() map[uint64]bool {
	in := make(map[uint64]bool)
	for _, s := range p.Snapshot() {
		for _, b := range s.Blocks {
			in[b.Serial] = b.Serial != 0
		}
	}
	return in
}

// leaver returns the function that closes a graph, which takes shards.mu.
func (c *Cache) leaver(m *GraphMemory) func() {
	return func() {
		c.shards.mu.Lock()
		defer c.shards.mu.Unlock()
		if i := slices.Index(c.openGraphs, m); i >= 0 {
			c.openGraphs = slices.Delete(c.openGraphs, i, i+1)
			m.Pool.Graphs.Add(-1)
		}
	}
}

// GraphProfile returns the present memory of graphs. Requests block while it walks the blocks of
// graphs' pools.
func (c *Cache) GraphProfile() (p GraphProfile) {
	c.shards.lockAll()
	free := c.freeOfGraphs(&p)
	c.shards.unlockAll()
	p.hold(free)
	return p
}

// hold adds the holdings of graphs in the free ranges.
func (p *GraphProfile) hold(free []freedBlock) {
	type parts struct {
		of    *GraphMemory
		pool  *placement.Pool
		notes []freedBlock
	}
	var all []parts
	add := func(pool *placement.Pool, of *GraphMemory, n freedBlock) {
		i := slices.IndexFunc(all, func(x parts) bool { return x.of == of && x.pool == pool })
		if i < 0 {
			i, all = len(all), append(all, parts{of: of, pool: pool})
		}
		all[i].notes = append(all[i].notes, n)
	}
	for _, r := range free {
		p.Held += r.size
		r.share(p.Graphs, add)
	}
	slices.SortStableFunc(all, func(a, b parts) int { return cmp.Compare(a.of.order(), b.of.order()) })
	for _, x := range all {
		number := uint64(0)
		if x.of != nil {
			number = x.of.Number
		}
		for _, h := range newProfile(x.notes, peakMark{}).Holdings {
			p.Holdings = append(p.Holdings, GraphHolding{Holding: h, Graph: number, Pool: x.pool.ID})
		}
	}
}

// order returns the position of a graph; no graph is last.
func (m *GraphMemory) order() uint64 {
	if m == nil {
		return 1<<64 - 1
	}
	return m.Number
}

// freeOfGraphs sets p.Graphs to the open graphs, and returns the free ranges of graphs' pools. All
// locks are held.
func (c *Cache) freeOfGraphs(p *GraphProfile) (free []freedBlock) {
	p.Graphs = slices.Clone(c.openGraphs)
	for _, s := range c.shards.list() {
		for seg := range s.arena.Segments() {
			if !seg.Pool().Pinned() {
				continue
			}
			for m := seg.First(); m != nil; m = m.Next() {
				if handoutOf(m) == nil && !m.Unmapped() {
					free = append(free, freedBlock{ptr: m.Ptr(), size: m.Size(), pool: seg.Pool()})
				}
			}
		}
	}
	slices.SortFunc(free, func(a, b freedBlock) int { return cmp.Compare(a.ptr, b.ptr) })
	return free
}

// share calls add for each part of a free range, with the first of the graphs that uses the part at
// its peak.
func (r freedBlock) share(graphs []*GraphMemory, add func(*placement.Pool, *GraphMemory, freedBlock)) {
	if r.size == 0 {
		return
	}
	for len(graphs) > 0 && graphs[0].place != r.pool {
		graphs = graphs[1:]
	}
	if len(graphs) == 0 {
		add(r.pool, nil, freedBlock{size: r.size})
		return
	}
	end := r.ptr + device.Ptr(r.size)
	for _, b := range graphs[0].blocks {
		from, to := max(r.ptr, b.ptr), min(end, b.ptr+device.Ptr(b.size))
		if from >= to {
			continue
		}
		freedBlock{ptr: r.ptr, size: int64(from - r.ptr), pool: r.pool}.share(graphs[1:], add)
		add(r.pool, graphs[0], freedBlock{label: b.label, stack: b.stack, size: int64(to - from)})
		r.ptr = to
	}
	r.size = int64(end - r.ptr)
	r.share(graphs[1:], add)
}
