package model

// Stat is one quantity.
type Stat struct{ Current, Peak, Allocated, Freed int64 }

// The quantities, in the order of PyTorch's memory_stats.
const (
	Allocation = iota
	AllocatedBytes
	Segments
	ReservedBytes
	Active
	ActiveBytes
	InactiveSplit
	InactiveSplitBytes
	RequestedBytes
	arrays
)

// Stats are the statistics.
type Stats struct {
	// each for both pools together, the small one and the large one
	Arrays           [arrays][3]Stat
	OversizeBlocks   Stat
	OversizeSegments Stat
	Retries, OOMs    int64
	Flushes          int64
	Allocs, Frees    int64 // of the driver
	Hits, Misses     int64
	Splits, Merges   int64
	Rejections       int64
	segments         map[*Segment]bool
	allocations      int64 // total number, for scopes
	hits, misses     int64
	driver           int64
	retried, failed  int64
}

func (s *Stat) set(n int64) {
	switch d := n - s.Current; {
	case d > 0:
		s.Allocated += d
	case d < 0:
		s.Freed -= d
	}
	s.Current = n
	s.Peak = max(s.Peak, n)
}

// step recounts everything: a statistic changes by the difference that a step made.
func (m *Model) step() {
	var n [arrays][3]int64
	var blocks, segments int64
	for g := range m.Stats.segments {
		k := 1 + int(g.Kind)
		if !g.Expandable {
			n[Segments][k]++
			if g.Bytes >= m.o.MaxSplit {
				segments++
			}
		}
		for _, b := range g.Blocks {
			if b.State == Hole {
				continue
			}
			n[ReservedBytes][k] += b.Size
			switch b.State {
			case Free:
				if !g.Expandable && len(g.Blocks) > 1 {
					n[InactiveSplit][k]++
					n[InactiveSplitBytes][k] += b.Size
				}
				continue
			case Used:
				n[Allocation][k]++
				n[AllocatedBytes][k] += b.Size
				if b.Size >= m.o.MaxSplit {
					blocks++
				}
			}
			n[Active][k]++
			n[ActiveBytes][k] += b.Size
			n[RequestedBytes][k] += b.Requested
		}
	}
	s := &m.Stats
	for i := range n {
		s.Arrays[i][0].set(n[i][1] + n[i][2])
		s.Arrays[i][1].set(n[i][1])
		s.Arrays[i][2].set(n[i][2])
	}
	s.OversizeBlocks.set(blocks)
	s.OversizeSegments.set(segments)
	for _, w := range m.scopes {
		w.Allocated.see(s.Arrays[AllocatedBytes][0].Current)
		w.Requested.see(s.Arrays[RequestedBytes][0].Current)
		w.Reserved.see(s.Arrays[ReservedBytes][0].Current)
	}
}

// Reset sets the peaks to the current values, or the sums to 0.
func (m *Model) Reset(peaks bool) {
	s := &m.Stats
	list := []*Stat{&s.OversizeBlocks, &s.OversizeSegments}
	for i := range s.Arrays {
		for k := range s.Arrays[i] {
			list = append(list, &s.Arrays[i][k])
		}
	}
	for _, v := range list {
		if peaks {
			v.Peak = v.Current
		} else {
			v.Allocated, v.Freed = 0, 0
		}
	}
	if !peaks {
		s.Retries, s.OOMs, s.Flushes, s.Allocs, s.Frees = 0, 0, 0, 0, 0
		s.Hits, s.Misses, s.Splits, s.Merges, s.Rejections = 0, 0, 0, 0, 0
	}
}

// Level is a number of bytes during a scope.
type Level struct{ Start, Current, Peak int64 }

func (l *Level) see(n int64) {
	l.Current = n
	l.Peak = max(l.Peak, n)
}

// Scope accounts for a part of the program.
type Scope struct {
	outer                                 *Scope
	Allocated, Requested, Reserved        Level
	Allocations, Hits, Misses, Allocs     int64
	Live, Peak, Own                       int64 // of its own blocks: bytes, and their total number
	ended                                 bool
	allocations0, hits0, misses0, allocs0 int64
	blocks0, retried0, failed0            int64
	Frees, Retries, OOMs                  int64
}

// OpenScope opens a scope inside outer, or a top-level one if outer is nil.
func (m *Model) OpenScope(outer *Scope) *Scope {
	s := &m.Stats
	at := func(i int) Level {
		n := s.Arrays[i][0].Current
		return Level{n, n, n}
	}
	w := &Scope{outer: outer, Allocated: at(AllocatedBytes), Requested: at(RequestedBytes), Reserved: at(ReservedBytes),
		allocations0: s.allocations, hits0: s.hits, misses0: s.misses, allocs0: s.driver,
		blocks0: s.Arrays[Allocation][0].Current, retried0: s.retried, failed0: s.failed}
	m.scopes = append(m.scopes, w)
	return w
}

// Count brings an open scope's counts up to date.
func (m *Model) Count(w *Scope) {
	if s := &m.Stats; !w.ended {
		w.Allocations, w.Hits, w.Misses, w.Allocs = s.allocations-w.allocations0, s.hits-w.hits0, s.misses-w.misses0, s.driver-w.allocs0
		w.Frees, w.Retries, w.OOMs = w.Allocations+w.blocks0-s.Arrays[Allocation][0].Current, s.retried-w.retried0, s.failed-w.failed0
	}
}

// EndScope ends a scope.
func (m *Model) EndScope(w *Scope) {
	if w.ended {
		return
	}
	m.Count(w)
	w.ended = true
	for i, o := range m.scopes {
		if o == w {
			m.scopes = append(m.scopes[:i:i], m.scopes[i+1:]...)
			return
		}
	}
}

// charge counts a block in the open scopes from w outwards.
func (b *Block) charge(w *Scope) {
	b.scopes = b.scopes[:0]
	for ; w != nil; w = w.outer {
		if !w.ended {
			w.Own++
			w.Live += b.Size
			w.Peak = max(w.Peak, w.Live)
			b.scopes = append(b.scopes, w)
		}
	}
}

func (b *Block) discharge() {
	for _, w := range b.scopes {
		w.Live -= b.Size
	}
	b.scopes = b.scopes[:0]
}
