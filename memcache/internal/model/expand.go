package model

import "sort"

func (m *Model) granule(k Kind) int64 {
	if k == Small {
		return 2 * mib
	}
	return m.o.Granule
}

// granules returns the whole granules inside a block.
func (m *Model) granules(b *Block) (from, to int64) {
	n, base := b.Segment.unit, b.Segment.At
	from = base + (b.At-base+n-1)/n*n
	to = base + (b.At+b.Size-base)/n*n
	return from, to
}

// candidate returns the first block from which on contiguous free memory and holes are enough for
// the request.
func (m *Model) candidate(r *request) *Block {
	var ranges []*Segment
	for g := range m.Stats.segments {
		if g.Expandable && g.owner() == r.stream && g.Pool == r.pool && g.Kind == r.kind {
			ranges = append(ranges, g)
		}
	}
	sort.Slice(ranges, func(i, j int) bool { return ranges[i].At < ranges[j].At })
	for _, g := range ranges {
		for i, b := range g.Blocks {
			if b.State != Hole {
				continue
			}
			if i > 0 && g.Blocks[i-1].State == Free {
				i--
			}
			var sum int64
			for _, n := range g.Blocks[i:] {
				if n.State != Free && n.State != Hole || sum >= r.size {
					break
				}
				sum += n.Size
			}
			if sum >= r.size {
				return g.Blocks[i]
			}
		}
	}
	return nil
}

// expand maps memory for the request.
func (m *Model) expand(r *request) *Block {
	b := m.candidate(r)
	if b == nil {
		if b = m.reserve(r); b == nil {
			return nil
		}
	}
	g := b.Segment
	for b.State == Hole || b.Size < r.size {
		hole, missing := b, r.size
		if b.State == Free {
			hole, missing = g.neighbour(b, +1), r.size-b.Size
		}
		if !m.mapFront(hole, min(hole.Size, missing)) {
			return nil
		}
		// The mapped piece swallows its free neighbours.
		for _, by := range []int{-1, +1} {
			if n := g.neighbour(hole, by); n != nil && n.State == Free {
				if n != b { // the growing block does not count
					m.Stats.Merges++
				}
				g.swallow(hole, n)
			}
		}
		b = hole
	}
	g.Pool.calls++
	m.countMiss()
	return m.handOut(b, r)
}

func (m *Model) reserve(r *request) *Block {
	n := m.granule(r.kind)
	bytes := (m.o.Total + m.o.Total/8 + n - 1) / n * n
	at, ok := m.driver.Reserve(bytes)
	if !ok {
		return nil
	}
	g := &Segment{At: at, Bytes: bytes, Stream: r.stream, Kind: r.kind, Pool: r.pool, Expandable: true, unit: n}
	b := &Block{At: at, Size: bytes, State: Hole, Segment: g}
	g.Blocks = []*Block{b}
	m.Stats.segments[g] = true
	return b
}

// mapFront maps the front of a hole, which becomes free memory; all of it or nothing.
func (m *Model) mapFront(b *Block, size int64) bool {
	g := b.Segment
	n := g.unit
	bytes := (size + n - 1) / n * n
	for done := int64(0); done < bytes; done += n {
		if !m.driver.Map(b.At+done, n) {
			for done -= n; done >= 0; done -= n {
				m.driver.Unmap(b.At+done, n)
			}
			return false
		}
	}
	if b.Size > bytes {
		g.insert(&Block{At: b.At + bytes, Size: b.Size - bytes, State: Hole, Segment: g}, b, 1)
		b.Size = bytes
	}
	b.State, g.mapped = Free, true
	m.Stats.Allocs++
	m.Stats.driver++
	m.trace("segment_map", b.At, bytes, g.Stream)
	m.step()
	return true
}

// unmap returns the whole granules of a free block to the driver, or as many at its end as atMost
// bytes need.
func (m *Model) unmap(b *Block, atMost int64) {
	g := b.Segment
	from, to := m.granules(b)
	for to-from >= g.unit && to-from-g.unit >= atMost {
		from += g.unit
	}
	for at, n := from, g.unit; at < to; at += n {
		m.driver.Unmap(at, n)
	}
	if b.At < from {
		g.insert(&Block{At: b.At, Size: from - b.At, Segment: g, born: m.clock[g.Kind]}, b, 0)
	}
	if end := b.At + b.Size; end > to {
		g.insert(&Block{At: to, Size: end - to, Segment: g, born: m.clock[g.Kind]}, b, 1)
	}
	b.At, b.Size, b.State = from, to-from, Hole
	for _, by := range []int{-1, +1} {
		if n := g.neighbour(b, by); n != nil && n.State == Hole {
			g.swallow(b, n)
		}
	}
	m.Stats.Frees++
	g.Pool.calls--
	m.trace("segment_unmap", from, to-from, g.Stream)
	m.step()
}

// remap returns as many free granules to the driver, the largest first, as the request is about to
// map.
func (m *Model) remap(r *request) {
	if !m.o.Remap {
		return
	}
	grows, need := m.candidate(r), r.size
	if grows != nil && grows.State == Free {
		need -= grows.Size
	}
	var chosen []*Block
	for _, id := range m.order {
		for _, k := range []Kind{Small, Large} {
			list := m.free(id, r.pool, k, 0)
			for i := len(list) - 1; i >= 0 && need > 0; i-- {
				if !list[i].Segment.Expandable {
					continue
				}
				if from, to := m.granules(list[i]); from < to && list[i] != grows {
					chosen = append(chosen, list[i])
					need -= to - from
				}
			}
		}
	}
	for _, b := range chosen {
		m.unmap(b, none)
	}
}
