package model

import (
	"cmp"
	"math"
	"slices"
)

// Free frees a block.
func (m *Model) Free(b *Block) {
	g := b.Segment
	m.trace("free_requested", b.At, b.Requested, g.Stream)
	b.discharge()
	if m.o.NoCaching {
		b.State = Pending
		m.step()
		for _, id := range b.uses {
			m.Finish(id)
		}
		m.trace("free_completed", b.At, b.Requested, g.Stream)
		m.returnSegment(g)
		return
	}
	if len(b.uses) == 0 {
		m.complete(b)
		return
	}
	b.State = Pending
	m.step()
	if m.aloof() {
		m.aside = append(m.aside, b)
		return
	}
	m.await(b)
}

// await makes a freed block wait for the streams that use it.
func (m *Model) await(b *Block) {
	for _, id := range b.uses {
		if s := m.streams[id]; !s.closed {
			m.events = append(m.events, &event{stream: id, block: b, behind: shut(s.gates)})
			b.events++
		}
	}
	b.uses = b.uses[:0]
	if b.events == 0 {
		m.complete(b)
	}
}

// takeUp processes the deferred frees, by the first streams that use them. Streams that were
// recorded while a pool was entered don't count.
func (m *Model) takeUp() {
	if m.aloof() {
		return
	}
	list := m.aside
	m.aside = nil
	slices.SortStableFunc(list, func(a, b *Block) int { return cmp.Compare(a.uses[0], b.uses[0]) })
	for _, b := range list {
		b.uses = slices.DeleteFunc(b.uses, func(id uint64) bool { return slices.Contains(b.inside, id) })
		m.await(b)
	}
}

// Streams returns the streams that a used block is recorded on, or that a pending one waits for.
func (m *Model) Streams(b *Block) []uint64 {
	list := slices.Clone(b.uses)
	for _, e := range m.events {
		if e.block == b {
			list = append(list, e.stream)
		}
	}
	slices.Sort(list)
	return list
}

// complete makes a block free, and merges it with its free neighbours.
func (m *Model) complete(b *Block) {
	g := b.Segment
	m.trace("free_completed", b.At, b.Requested, g.Stream)
	m.join(b)
	b.State, b.born, b.inside = Free, m.clock[g.Kind], nil
	m.step()
}

// join merges the free neighbours into a block.
func (m *Model) join(b *Block) {
	for _, by := range []int{-1, +1} {
		if n := b.Segment.neighbour(b, by); n != nil && n.State == Free {
			b.Segment.swallow(b, n)
			m.Stats.Merges++
		}
	}
}

// pollEach completes the frees whose events are complete, one stream after the other. With Exact a
// request has already done so.
func (m *Model) pollEach() {
	if m.o.Exact {
		return
	}
	for _, id := range m.order {
		m.poll(of(id))
	}
}

// PollFrees completes the frees of all streams whose events are complete.
func (m *Model) PollFrees() {
	m.takeUp()
	if m.o.Exact && !m.aloof() {
		m.poll(func(*Block) bool { return true })
	}
	m.pollEach()
}

// of selects the blocks of a stream.
func of(id uint64) func(*Block) bool { return func(b *Block) bool { return b.Segment.Stream == id } }

// poll completes the frees of those blocks whose events are complete: stream by stream, up to the
// first incomplete event.
func (m *Model) poll(asked func(*Block) bool) {
	var done []*Block
	for _, id := range m.order {
		for i := 0; i < len(m.events); {
			e := m.events[i]
			if e.stream != id || !asked(e.block) {
				i++
				continue
			}
			if !e.ready() {
				break
			}
			m.events = append(m.events[:i:i], m.events[i+1:]...)
			if e.block.events--; e.block.events == 0 {
				done = append(done, e.block)
			}
		}
	}
	for _, b := range done {
		m.complete(b)
	}
}

// EmptyCache waits for all events and returns free memory to the driver.
func (m *Model) EmptyCache() { m.flush(nil, nil) }

// EmptyPool is EmptyCache for one private pool alone.
func (m *Model) EmptyPool(p *Pool) { m.flush(p, nil) }

// flush is EmptyCache of p or, if it is nil, of all except the unreleased private pools, and of
// own.
func (m *Model) flush(p, own *Pool) {
	if p != nil && m.o.Exact && !slices.Contains(m.given.list(), p) {
		return
	}
	m.awaitFrees(p)
	var list []*Block
	gather := func(p *Pool, k Kind) { // in each, whole segments before granules
		var whole, parts []*Block
		for _, id := range m.order {
			for _, b := range m.free(id, p, k, 0) {
				if b.Segment.Expandable {
					if from, to := m.granules(b); from < to {
						parts = append(parts, b)
					}
				} else if b.alone() {
					whole = append(whole, b)
				}
			}
		}
		list = append(append(list, whole...), parts...)
	}
	if p == nil {
		if !m.aloof() {
			gather(m.Default(), Large)
			gather(m.Default(), Small)
		}
		for _, p := range m.releasedPools() {
			gather(p, Small)
			gather(p, Large)
		}
		if own != nil && own != m.Default() && !own.released && !m.o.Exact {
			gather(own, Small)
			gather(own, Large)
		}
	} else {
		gather(p, Small)
		gather(p, Large)
	}
	for _, b := range list {
		if b.Segment.Expandable {
			m.unmap(b, none)
		} else {
			m.returnSegment(b.Segment)
		}
	}
	m.forget(p)
}

// awaitFrees waits for the pending frees of a pool or, if it is nil, of all; without Exact always
// of all.
func (m *Model) awaitFrees(p *Pool) {
	if m.aloof() {
		return
	}
	m.Stats.Flushes++
	m.takeUp()
	if m.o.Exact {
		m.wait(func(b *Block) bool { return p == nil || b.Segment.Pool == p })
		return
	}
	for _, id := range m.order {
		m.wait(of(id))
	}
}

// releasedPools returns the pools that a flush visits.
func (m *Model) releasedPools() []*Pool {
	if m.o.Exact {
		return m.given.list()
	}
	return slices.DeleteFunc(slices.Clone(m.pools), func(p *Pool) bool { return !p.released })
}

// forget removes what no longer has memory: released pools, all or one, and ranges.
func (m *Model) forget(p *Pool) {
	for _, o := range m.given.list() {
		if (p == nil || p == o) && o.calls == 0 && !m.holds(o) {
			m.given.remove(o)
		}
	}
	for _, g := range m.Segments() {
		if g.mapped && len(g.Blocks) == 1 && g.Blocks[0].State == Hole {
			m.driver.Unreserve(g.At)
			delete(m.Stats.segments, g)
		}
	}
}

// holds reports whether a pool has memory.
func (m *Model) holds(p *Pool) bool {
	for g := range m.Stats.segments {
		if g.Pool == p && slices.ContainsFunc(g.Blocks, func(b *Block) bool { return b.State != Hole }) {
			return true
		}
	}
	return false
}

// wait completes the events of those blocks, the oldest first, and makes the blocks free.
func (m *Model) wait(asked func(*Block) bool) {
	for {
		i := slices.IndexFunc(m.events, func(e *event) bool { return asked(e.block) })
		if i < 0 {
			return
		}
		if e := m.events[i]; !e.ready() {
			m.Finish(e.stream)
		}
		m.poll(asked)
	}
}

// returnSegment returns a segment to the driver.
func (m *Model) returnSegment(g *Segment) {
	m.driver.Free(g.At, g.Bytes)
	delete(m.Stats.segments, g)
	m.Stats.Frees++
	g.Pool.calls--
	m.trace("segment_free", g.At, g.Bytes, g.Stream)
	m.step()
}

// alone reports whether the block is all of a segment that is not expandable.
func (b *Block) alone() bool { return !b.Segment.Expandable && len(b.Segment.Blocks) == 1 }

// collect returns old segments of the default large pool.
func (m *Model) collect() {
	if !m.collects() {
		return
	}
	over := m.Stats.Arrays[ReservedBytes][0].Current - int64(math.Floor(m.o.Threshold*float64(m.o.Limit)))
	var list, chosen []*Block
	for _, id := range m.order {
		for _, b := range m.free(id, m.Default(), Large, 0) {
			if b.alone() {
				list = append(list, b)
			}
		}
	}
	for over > 0 && len(list) > 0 {
		sum := 0.0
		for _, b := range list {
			sum += float64(m.clock[Large] - b.born)
		}
		mean := sum / float64(len(list))
		var rest []*Block
		for _, b := range list {
			if float64(m.clock[Large]-b.born) < mean {
				rest = append(rest, b)
				continue
			}
			chosen = append(chosen, b)
			over -= b.Size
		}
		list = rest
	}
	for _, b := range chosen {
		m.returnSegment(b.Segment)
	}
}

// releaseOversize returns one large enough free block that must not be split, or the largest ones
// that are large enough together, and reports whether they were.
func (m *Model) releaseOversize(r *request) bool {
	if m.o.MaxSplit == none {
		return false
	}
	need := max(r.size, m.o.MaxSplit)
	list := m.free(r.stream, r.pool, r.kind, 0)
	at := 0
	for at < len(list) && list[at].Size < need {
		at++
	}
	if at < len(list) && list[at].alone() {
		m.returnSegment(list[at].Segment)
		return true
	}
	var sum int64
	if at == len(list) {
		at--
	} else {
		at-- // an expandable one, or a part of a segment: try those before it
	}
	for ; at >= 0 && sum < need && list[at].Size >= m.o.MaxSplit; at-- {
		if list[at].alone() {
			sum += list[at].Size
			m.returnSegment(list[at].Segment)
		}
	}
	return sum >= need
}
