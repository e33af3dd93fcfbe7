package memcache

import "math/bits"

// PyTorch's sizes, in bytes.
const (
	minBlock     = 512      // every block is a multiple of this
	smallLimit   = 1 << 20  // up to this a request is served from the small pool
	smallSegment = 2 << 20  // a segment of the small pool
	minLarge     = 10 << 20 // from this on a request gets a segment of its own
	largeSegment = 20 << 20 // the segment for requests between smallLimit and minLarge, by default
	roundLarge   = 2 << 20  // segments of their own are multiples of this
	maxRequest   = 1 << 60  // from this on nothing is tried
)

// round is PyTorch's round_size.
func (r *rules) round(bytes int64) int64 {
	if bytes <= 0 {
		return 0
	}
	if bytes > minBlock {
		if d := int64(r.divisions[division(bytes)]); d > 1 && bytes > minBlock*d {
			return roundDivision(bytes, d)
		}
	}
	return roundUp(bytes, minBlock)
}

// roundDivision rounds up to one of d steps between the powers of two around bytes.
func roundDivision(bytes, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(bytes)) - 1)
	if bytes == floor {
		return bytes
	}
	step := floor / d
	if step == 0 {
		return 2 * floor
	}
	return roundUp(bytes, step)
}

func roundUp(bytes, unit int64) int64 { return (bytes + unit - 1) / unit * unit }

// segment is what the driver is asked for, for a request of rounded bytes (PyTorch's get_allocation_size).
func (r *rules) segment(rounded int64) int64 {
	switch {
	case rounded == 0:
		return 0
	case rounded <= smallLimit:
		return smallSegment
	case rounded < minLarge:
		return r.largeSegment
	default:
		return roundUp(rounded, roundLarge)
	}
}

// poolKind tells PyTorch's two pools apart. Its values index the statistics.
type poolKind uint8

const (
	smallPool poolKind = iota
	largePool
)

func (k poolKind) String() string {
	if k == smallPool {
		return "small"
	}
	return "large"
}

func poolFor(rounded int64) poolKind {
	if rounded <= smallLimit {
		return smallPool
	}
	return largePool
}

// worthSplitting is PyTorch's should_split: whether a free block keeps what a request leaves of it.
func (c *Cache) worthSplitting(m *meta, r *request) bool {
	if m.segment.whole {
		return false
	}
	rest := m.size - r.rounded
	if m.kind == smallPool || c.config.ExpandableSegments {
		return rest >= minBlock
	}
	return r.rounded < c.rules.maxSplit && rest > smallLimit
}
