package model

import (
	"slices"
	"sort"
)

// request is one allocation.
type request struct {
	bytes, size int64
	stream      uint64
	pool        *Pool
	kind        Kind
	rejected    bool
}

// Alloc allocates a block.
func (m *Model) Alloc(bytes int64, id uint64, p *Pool, w *Scope) (*Block, Failure) {
	if m.streams[id].closed {
		return nil, Closed
	}
	r := request{bytes: bytes, size: m.round(bytes), stream: id, pool: p}
	r.kind = kindOf(m.round(bytes))
	if !m.o.NoCaching {
		m.takeUp()
		switch {
		case m.aloof():
		case m.o.Exact:
			m.poll(func(*Block) bool { return true })
		default:
			m.poll(of(id))
		}
		if m.collects() && p == m.Default() {
			m.clock[r.kind]++
		}
	}
	if p.released {
		return nil, Released
	}
	b := m.hit(&r, p)
	for b == nil {
		if b = m.miss(&r); b != nil {
			break
		}
		if r.rejected || m.Reclaim == nil || !m.Reclaim(m.segmentFor(r.size)) {
			m.Stats.OOMs++
			m.Stats.failed++
			m.countMiss()
			m.trace("oom", 0, r.size, id)
			return nil, OutOfMemory
		}
	}
	if w != nil {
		b.charge(w)
	}
	return b, None
}

func (m *Model) countMiss() { m.Stats.Misses++; m.Stats.misses++ }

// hit serves a request from a free block of a pool.
func (m *Model) hit(r *request, p *Pool) *Block {
	b := m.find(r, p)
	if b == nil || m.o.NoCaching {
		return nil
	}
	m.Stats.Hits++
	m.Stats.hits++
	return m.handOut(b, r)
}

// free lists the free blocks of a stream and pool with at least size bytes, by size and address.
func (m *Model) free(id uint64, p *Pool, k Kind, size int64) []*Block {
	var list []*Block
	for g := range m.Stats.segments {
		if g.owner() != id || g.Pool != p || g.Kind != k {
			continue
		}
		for _, b := range g.Blocks {
			if b.State == Free && b.Size >= size {
				list = append(list, b)
			}
		}
	}
	sort.Slice(list, func(i, j int) bool {
		if list[i].Size != list[j].Size {
			return list[i].Size < list[j].Size
		}
		return list[i].At < list[j].At
	})
	return list
}

// find returns the best fit.
func (m *Model) find(r *request, p *Pool) *Block {
	list := m.free(r.stream, p, r.kind, r.size)
	if !m.o.Expandable { // it may have been on earlier
		list = slices.DeleteFunc(list, func(b *Block) bool { return b.Segment.Expandable })
	}
	if len(list) == 0 {
		return nil
	}
	b := list[0]
	if b.Segment.Expandable {
		for _, next := range list[1:] {
			if !b.Segment.Expandable || m.room(next) >= m.room(b) {
				break
			}
			b = next
		}
		if !m.o.Exact {
			return b
		}
	}
	if r.size < m.o.MaxSplit && b.Size >= m.o.MaxSplit || r.size >= m.o.MaxSplit && b.Size >= r.size+m.o.MaxNonSplitRounding {
		return nil
	}
	return b
}

// room returns the size of a block and of the hole after it.
func (m *Model) room(b *Block) int64 {
	if n := b.Segment.neighbour(b, +1); n != nil && n.State == Hole {
		return b.Size + n.Size
	}
	return b.Size
}

func (m *Model) splits(b *Block, r *request) bool {
	rest := b.Size - r.size
	switch {
	case b.Segment.Pool.whole:
		return false
	case b.Segment.Kind == Small || m.o.Expandable:
		return rest >= unit
	}
	return r.size < m.o.MaxSplit && rest > mib
}

// handOut allocates a free block, or the front of it.
func (m *Model) handOut(b *Block, r *request) *Block {
	if m.splits(b, r) {
		front := &Block{At: b.At, Size: r.size, Segment: b.Segment}
		b.Segment.insert(front, b, 0)
		b.At += r.size
		b.Size -= r.size
		b.born = m.clock[r.kind]
		m.Stats.Splits++
		b = front
	}
	b.State, b.Requested = Used, r.bytes
	m.Stats.allocations++
	m.trace("alloc", b.At, r.bytes, r.stream)
	m.step()
	return b
}

// miss serves a request with memory from the driver.
func (m *Model) miss(r *request) *Block {
	m.pollEach()
	m.inheritSegments(r.stream)
	if m.o.NoCaching {
		return m.grow(r, false)
	}
	if b := m.hit(r, r.pool); b != nil {
		return b
	}
	m.collect()
	m.remap(r)
	if b := m.grow(r, false); b != nil || r.rejected {
		return b
	}
	if b := m.lend(r); b != nil {
		return b
	}
	if m.releaseOversize(r) {
		if b := m.grow(r, false); b != nil {
			return b
		}
	}
	if m.aloof() {
		return nil
	}
	m.flush(nil, r.pool)
	if !m.o.Exact {
		if b := m.hit(r, r.pool); b != nil {
			return b
		}
		if b := m.lend(r); b != nil {
			return b
		}
	}
	return m.grow(r, true)
}

// inheritSegments moves free segments of closed streams to the stream of a request or, with Exact,
// to the orphans, which serve no request.
func (m *Model) inheritSegments(id uint64) {
	for g := range m.Stats.segments {
		if g.Stream == id || !m.streams[g.Stream].closed {
			continue
		}
		unused := true
		for _, b := range g.Blocks {
			unused = unused && (b.State == Free || b.State == Hole)
		}
		switch {
		case unused && m.o.Exact:
			g.orphan = true
		case unused:
			g.Stream = id
		}
	}
}

// lend serves a request of the default pool from a private one.
func (m *Model) lend(r *request) *Block {
	if r.pool != m.Default() || m.o.Exact && m.o.Expandable {
		return nil
	}
	lenders := m.pools[1:]
	if m.o.Exact {
		lenders = m.lenders.list()
	}
	for _, p := range lenders {
		if !p.lends || p.released {
			continue
		}
		if b := m.hit(r, p); b != nil {
			return b
		}
	}
	return nil
}

// grow allocates from the driver.
func (m *Model) grow(r *request, again bool) *Block {
	bytes := m.segmentFor(r.size)
	if again {
		m.Stats.Retries++
		m.Stats.retried++
	}
	if m.o.Limit >= 0 && m.Stats.Arrays[ReservedBytes][0].Current+bytes > m.o.Limit {
		if r.rejected = m.o.Rejects; r.rejected {
			m.Stats.Rejections++
		}
		return nil
	}
	if m.o.Expandable {
		return m.expand(r)
	}
	at, ok := m.driver.Alloc(bytes)
	if !ok {
		return nil
	}
	g := &Segment{At: at, Bytes: bytes, Stream: r.stream, Kind: r.kind, Pool: r.pool}
	b := &Block{At: at, Size: bytes, Segment: g}
	g.Blocks = []*Block{b}
	m.Stats.segments[g] = true
	m.Stats.Allocs++
	m.Stats.driver++
	g.Pool.calls++
	m.trace("segment_alloc", at, bytes, r.stream)
	m.countMiss()
	return m.handOut(b, r)
}
