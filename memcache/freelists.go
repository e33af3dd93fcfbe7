package memcache

// lists are the blocks of a stream and pool that are not in use, by poolKind. A stream has them for the
// default pool, and for each private pool that it has a segment of. They are guarded by the shard's lock.
type freeLists struct {
	pool     *Pool // nil: the default pool
	free     [2]index
	unmapped [2]tree // parts of expandable segments, by address
	segments int     // those whose blocks belong here
}

func (l *freeLists) init(p *Pool) {
	l.pool = p
	l.unmapped[smallPool].byAddress, l.unmapped[largePool].byAddress = true, true
}

// of returns the lists of a pool, or nil if the stream has no segment of it. s.mu is held.
func (s *shard) listsFor(p *Pool) *freeLists {
	if p == nil {
		return &s.freeLists
	}
	return s.private[p]
}

// own makes a segment, whose block is not in the index, the shard's. All shards are locked, or s.mu is held
// with the growth lock.
func (s *shard) addSegment(seg *segment, p *Pool) {
	l := s.listsFor(p)
	if l == nil {
		l = new(freeLists)
		l.init(p)
		if s.private == nil {
			s.private = make(map[*Pool]*freeLists)
		}
		s.private[p] = l
	}
	l.segments++
	k := seg.first.kind
	seg.freeLists, seg.free, seg.unmapped = l, &l.free[k], &l.unmapped[k]
	seg.noSplit = p != nil && p.options.NoSplit
	if s.id != orphanStream {
		seg.stream = s.id
	}
	s.segments[seg.ptr] = seg
}

// disown undoes own.
func (s *shard) removeSegment(seg *segment) {
	delete(s.segments, seg.ptr)
	l := seg.freeLists
	seg.freeLists, seg.free, seg.unmapped = nil, nil, nil // unused metas may still name the segment
	if l.segments--; l.segments == 0 && l.pool != nil {
		delete(s.private, l.pool)
	}
}

// bytes are the sum of the free blocks.
func (l *freeLists) bytes() (sum int64) {
	for k := range l.free {
		l.free[k].each(func(m *chunk) { sum += m.size })
	}
	return sum
}
