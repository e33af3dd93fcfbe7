package memcache

// freeLists are the chunks of one stream and one pool that are not in use, by poolKind. A shard has them for the default
// pool, and for each private pool that it has a segment of; each segment names the ones that its chunks belong to, so that
// a free looks nothing up. They are guarded by the shard's lock.
type freeLists struct {
	pool     *Pool // nil: the default pool
	free     [2]index
	unmapped [2]tree // parts of expandable segments without memory, by address
	segments int     // whose chunks belong here; with the last one the lists of a private pool go
}

// init readies the lists of a pool, nil for the default one; they must not be copied afterwards, since segments point into
// them.
func (l *freeLists) init(p *Pool) {
	l.pool = p
	l.unmapped[smallPool].byAddress, l.unmapped[largePool].byAddress = true, true
}

// listsFor returns the free lists of a pool, or nil if the stream has no segment of it. s.mu is held.
func (s *shard) listsFor(p *Pool) *freeLists {
	if p == nil {
		return &s.freeLists
	}
	return s.private[p]
}

// addSegment makes a segment, whose chunks are in no index, the shard's. All shards are locked, or s.mu is held with the
// growth lock.
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

// removeSegment undoes addSegment, under the same locks.
func (s *shard) removeSegment(seg *segment) {
	delete(s.segments, seg.ptr)
	l := seg.freeLists
	seg.freeLists, seg.free, seg.unmapped = nil, nil, nil // unused chunks may still name the segment
	if l.segments--; l.segments == 0 && l.pool != nil {
		delete(s.private, l.pool)
	}
}

// bytes is the sum of the free chunks. s.mu is held.
func (l *freeLists) bytes() (sum int64) {
	for k := range l.free {
		l.free[k].each(func(m *chunk) { sum += m.size })
	}
	return sum
}
