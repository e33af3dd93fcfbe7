package memcache

// lists are the blocks of a stream and pool that are not in use, by poolKind. A stream has them for the
// default pool, and for each private pool that it has a segment of. They are guarded by the shard's lock.
type lists struct {
	pool     *Pool // nil: the default pool
	free     [2]index
	unmapped [2]tree // parts of expandable segments, by address
	segments int     // those whose blocks belong here
}

func (l *lists) init(p *Pool) {
	l.pool = p
	l.unmapped[smallPool].byAddress, l.unmapped[largePool].byAddress = true, true
}

// of returns the lists of a pool, or nil if the stream has no segment of it. s.mu is held.
func (s *shard) of(p *Pool) *lists {
	if p == nil {
		return &s.lists
	}
	return s.private[p]
}

// own makes a segment, whose block is not in the index, the shard's. All shards are locked, or s.mu is held
// with the growth lock.
func (s *shard) own(g *segment, p *Pool) {
	l := s.of(p)
	if l == nil {
		l = new(lists)
		l.init(p)
		if s.private == nil {
			s.private = make(map[*Pool]*lists)
		}
		s.private[p] = l
	}
	l.segments++
	k := g.first.kind
	g.lists, g.free, g.unmapped = l, &l.free[k], &l.unmapped[k]
	g.whole = p != nil && p.options.NoSplit
	if s.id != orphanStream {
		g.stream = s.id
	}
	s.segments[g.ptr] = g
}

// disown undoes own.
func (s *shard) disown(g *segment) {
	delete(s.segments, g.ptr)
	l := g.lists
	g.lists, g.free, g.unmapped = nil, nil, nil // unused metas may still name the segment
	if l.segments--; l.segments == 0 && l.pool != nil {
		delete(s.private, l.pool)
	}
}

// bytes are the sum of the free blocks.
func (l *lists) bytes() (sum int64) {
	for k := range l.free {
		l.free[k].all(func(m *meta) { sum += m.size })
	}
	return sum
}
