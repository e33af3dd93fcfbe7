package memcache

// PyTorch's sizes, in bytes.
const (
	minBlock     = 512      // every block is a multiple of this
	smallLimit   = 1 << 20  // up to this a request is served from the small pool
	smallSegment = 2 << 20  // a segment of the small pool
	minLarge     = 10 << 20 // from this on a request gets a segment of its own
	largeSegment = 20 << 20 // the segment for requests between smallLimit and minLarge
	roundLarge   = 2 << 20  // segments of their own are multiples of this
	maxRequest   = 1 << 60  // from this on nothing is tried
)

// RoundSize returns the bytes of the block that a request of bytes bytes needs: the next multiple of 512,
// and 0 for 0 or less (PyTorch's round_size). The block that Alloc returns may be larger: a free block is
// only split where the rest is worth keeping.
func RoundSize(bytes int64) int64 {
	if bytes <= 0 {
		return 0
	}
	return (bytes + minBlock - 1) &^ (minBlock - 1)
}

// SegmentSize returns the bytes that are asked of the driver when no free block fits a request of bytes
// bytes: 2 MiB, 20 MiB, or from 10 MiB on the next multiple of 2 MiB (PyTorch's get_allocation_size).
func SegmentSize(bytes int64) int64 {
	switch rounded := RoundSize(bytes); {
	case rounded == 0:
		return 0
	case rounded <= smallLimit:
		return smallSegment
	case rounded < minLarge:
		return largeSegment
	default:
		return (rounded + roundLarge - 1) &^ (roundLarge - 1)
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
func worthSplitting(kind poolKind, rest int64) bool {
	if kind == smallPool {
		return rest >= minBlock
	}
	return rest > smallLimit
}
