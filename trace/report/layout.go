package report

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// A recording has the requested size and the address of a block, but not always its size, because a
// free chunk is split only if the rest is large enough. The chunk follows from the addresses, if
// the recording is complete from the start.

// sizing is the options that determine the sizes of blocks.
type sizing struct {
	config   memcache.Config
	maxSplit int64 // bytes
}

// sizingOf returns the sizing of an option string; settings, if not nil, override it. Unknown
// options have their defaults.
func sizingOf(conf string, settings *recording.Settings) sizing {
	config, _ := memcache.ParseConfig(conf)
	s := sizing{config: config, maxSplit: maxSplit(config)}
	if settings != nil {
		s.config.ExpandableSegments = settings.ExpandableSegments
		for i, d := range settings.RoundupPower2Divisions {
			s.config.RoundupPower2Divisions[i] = int(d)
		}
		if settings.MaxSplitSize > 0 {
			s.maxSplit = settings.MaxSplitSize
		}
	}
	return s
}

// maxSplit returns the limit of a configuration, in bytes.
func maxSplit(config memcache.Config) int64 {
	if mb := config.MaxSplitSizeMB; mb > 0 && mb < math.MaxInt64>>20 {
		return mb << 20
	}
	return math.MaxInt64
}

// round returns the size of the chunk that a request needs.
func (s *sizing) round(n int64) int64 {
	if r := s.config.RoundSize(n); r > 0 {
		return r
	}
	return (n + sizes.MinBlock - 1) / sizes.MinBlock * sizes.MinBlock
}

// splits reports whether the rest of a free chunk becomes a chunk of its own.
func (s *sizing) splits(rounded, rest int64) bool {
	if rounded <= sizes.SmallLimit || s.config.ExpandableSegments {
		return rest >= sizes.MinBlock
	}
	return rounded < s.maxSplit && rest > sizes.SmallLimit
}

// chunk is a piece of a segment.
type chunk struct {
	addr       uint64
	size       int64
	prev, next *chunk // neighbours in the segment
	free       bool
}

// layout tracks the chunks of all segments.
type layout struct {
	sizing sizing
	at     sorted[*chunk]    // by address
	end    map[uint64]*chunk // the last chunk of each mapped range, by its end
}

// blockSizes sets the sizes of blocks in allocs. It returns an error if the entries are not
// complete.
func blockSizes(s *source) error {
	if s.sized() {
		return nil
	}
	l := &layout{sizing: s.sizing, end: make(map[uint64]*chunk)}
	sizes := make([]int64, len(s.entries))
	for i := range s.entries {
		size, err := l.apply(&s.entries[i])
		if err != nil {
			return fmt.Errorf("entry %d: %w", i, err)
		}
		sizes[i] = size
	}
	for _, seg := range s.final {
		for _, b := range seg.blocks {
			if c := l.chunk(b.addr); c == nil || c.free || c.size != b.size {
				return fmt.Errorf("the block of %d bytes at the end is not where the entries leave one", b.size)
			}
		}
	}
	for i, size := range sizes {
		if s.entries[i].action == recording.Alloc {
			s.entries[i].size = size
		}
	}
	return nil
}

// sized reports whether the recording has the sizes of its blocks.
func (s *source) sized() bool {
	known := false
	for i := range s.entries {
		if e := &s.entries[i]; e.action == recording.Alloc {
			if e.size == 0 {
				return false
			}
			known = true
		}
	}
	return known
}

// apply applies an entry, and returns the size of the block of an alloc.
func (l *layout) apply(e *entry) (size int64, err error) {
	switch e.action {
	case recording.Alloc:
		c := l.chunk(e.addr)
		rounded := l.sizing.round(e.requested)
		if c == nil || !c.free || c.size < rounded {
			return 0, fmt.Errorf("alloc of %d bytes: no free chunk begins there", e.requested)
		}
		c.free = false
		if rest := c.size - rounded; l.sizing.splits(rounded, rest) {
			l.split(c, rounded)
		}
		return c.size, nil
	case recording.FreeCompleted:
		c := l.chunk(e.addr)
		if c == nil || c.free {
			return 0, fmt.Errorf("free of %d bytes: no block begins there", e.requested)
		}
		c.free = true
		l.merge(c)
	case recording.SegmentAlloc:
		return 0, l.grow(e, nil)
	case recording.SegmentMap:
		return 0, l.grow(e, l.end[e.addr])
	case recording.SegmentFree, recording.SegmentUnmap:
		return 0, l.shrink(e)
	}
	return 0, nil
}

// chunk returns the chunk that begins at an address, or nil.
func (l *layout) chunk(addr uint64) *chunk {
	if c, ok := l.at.from(addr); ok && c.addr == addr {
		return c
	}
	return nil
}

// split makes the rest of c, after size bytes, a free chunk of its own.
func (l *layout) split(c *chunk, size int64) {
	rest := &chunk{addr: c.addr + uint64(size), size: c.size - size, prev: c, next: c.next, free: true}
	if c.next != nil {
		c.next.prev = rest
	}
	c.next, c.size = rest, size
	l.at.set(rest.addr, rest)
	l.moveEnd(rest)
}

// moveEnd records c in end if it is the last chunk of its range.
func (l *layout) moveEnd(c *chunk) {
	if c.next == nil {
		l.end[c.addr+uint64(c.size)] = c
	}
}

// merge joins a free chunk with its free neighbours.
func (l *layout) merge(c *chunk) {
	if n := c.next; n != nil && n.free {
		l.absorb(c, n)
	}
	if p := c.prev; p != nil && p.free {
		l.absorb(p, c)
	}
}

// absorb appends n, the next chunk, to c.
func (l *layout) absorb(c, n *chunk) {
	l.at.remove(n.addr)
	c.size += n.size
	c.next = n.next
	if c.next != nil {
		c.next.prev = c
	}
	l.moveEnd(c)
}

// grow adds memory from the driver, after the chunk prev if it continues one.
func (l *layout) grow(e *entry, prev *chunk) error {
	if l.chunk(e.addr) != nil {
		return fmt.Errorf("%v of %d bytes: there is a segment already", e.action, e.requested)
	}
	c := &chunk{addr: e.addr, size: e.requested, prev: prev, free: true}
	if e.action == recording.SegmentMap {
		if n := l.chunk(e.addr + uint64(e.requested)); n != nil && n.prev == nil {
			c.next, n.prev = n, c
		}
	}
	if prev != nil {
		delete(l.end, e.addr)
		prev.next = c
	}
	l.at.set(e.addr, c)
	l.moveEnd(c)
	l.merge(c)
	return nil
}

// shrink removes a free range.
func (l *layout) shrink(e *entry) error {
	// An unmapped range may begin inside of a free chunk. The part of the chunk before it remains.
	c := l.chunk(e.addr)
	if c == nil {
		c = l.containing(e.addr)
		if c == nil {
			return fmt.Errorf("%v of %d bytes: no memory is there", e.action, e.requested)
		}
		l.split(c, int64(e.addr-c.addr))
		c = c.next
	}
	if !c.free || c.size < e.requested {
		return fmt.Errorf("%v of %d bytes: the memory is in use", e.action, e.requested)
	}
	if c.size > e.requested {
		l.split(c, e.requested)
	} else if c.next == nil {
		delete(l.end, c.addr+uint64(c.size))
	}
	l.at.remove(c.addr)
	if c.prev != nil {
		c.prev.next = nil
		l.moveEnd(c.prev)
	}
	if c.next != nil {
		c.next.prev = nil
	}
	return nil
}

// containing returns the free chunk that contains an address. Only memory that is unmapped in part
// needs it.
func (l *layout) containing(addr uint64) *chunk {
	if c, ok := l.at.before(addr); ok && c.free && addr < c.addr+uint64(c.size) {
		return c
	}
	return nil
}
