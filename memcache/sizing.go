package memcache

import (
	"fmt"
	"math"
	"math/bits"

	"github.com/cistern-ml/cistern/internal/sizes"
)

// Sizes of blocks and segments, as PyTorch chooses them. With default options:
//
//	request          block                    segment, if no free block fits
//	1 to 1 MiB       next multiple of 512     2 MiB, of the small pool
//	up to 10 MiB     next multiple of 512     20 MiB
//	from 10 MiB      next multiple of 512     the next multiple of 2 MiB
//
// A free block is split if at least 512 bytes are left over in the small pool, or more than 1 MiB in the large one.

// PyTorch's sizes, in bytes, and what is never tried.
const (
	minBlock     = sizes.MinBlock
	smallLimit   = sizes.SmallLimit
	smallSegment = sizes.SmallSegment
	minLarge     = sizes.MinLarge
	largeSegment = sizes.LargeSegment
	roundLarge   = sizes.RoundLarge

	maxRequest = 1 << 60 // from this on a request is refused at once
)

// sizing is what a configuration says about sizes, in bytes, checked and with the defaults in place. It never changes.
type sizing struct {
	divisions           Divisions
	maxSplit            int64 // math.MaxInt64: no limit
	maxNonSplitRounding int64
	largeSegment        int64
	granule             int64 // of expandable segments of the large pool
}

// sizing checks the configuration's numbers.
func (c *Config) sizing() (sizing, error) {
	const mib = 1 << 20
	r := sizing{divisions: c.RoundupPower2Divisions, maxSplit: math.MaxInt64, largeSegment: largeSegment}
	// The first mistake is reported, with what would be right. Bounds keep the products below from overflowing.
	invalid := func(option string, value any, want string) (sizing, error) {
		return sizing{}, fmt.Errorf("memcache: %s is %v: %w: want %s", option, value, ErrInvalid, want)
	}
	if v := c.LargeSegmentSizeMB; v != 0 {
		if v <= 10 || v > maxRequest/mib {
			return invalid("LargeSegmentSizeMB", v, "more than 10, or 0 for 20")
		}
		r.largeSegment = v * mib
	}
	r.granule = r.largeSegment
	if v := c.ExpandableGranuleMB; v != 0 {
		if v < 2 || v%2 != 0 || v > maxRequest/mib {
			return invalid("ExpandableGranuleMB", v, "an even number of MiB, or 0 for the large segment's")
		}
		r.granule = v * mib
	}
	if c.ExpandableRemap && !c.ExpandableSegments {
		return invalid("ExpandableRemap", true, "ExpandableSegments as well")
	}
	r.maxNonSplitRounding = r.largeSegment
	atLeast := fmt.Sprintf("at least the large segment's %d MiB, or 0", r.largeSegment/mib)
	if v := c.MaxSplitSizeMB; v != 0 {
		if v < r.largeSegment/mib {
			return invalid("MaxSplitSizeMB", v, atLeast+" for no limit")
		}
		r.maxSplit = min(v, maxRequest/mib) * mib
	}
	if v := c.MaxNonSplitRoundingMB; v != 0 {
		if v < r.largeSegment/mib {
			return invalid("MaxNonSplitRoundingMB", v, atLeast)
		}
		r.maxNonSplitRounding = min(v, maxRequest/mib) * mib
	}
	for _, d := range c.RoundupPower2Divisions {
		if d < 0 || d&(d-1) != 0 || d > 1<<30 {
			return invalid("RoundupPower2Divisions", c.RoundupPower2Divisions, "powers of two, or 0")
		}
	}
	if v := c.GarbageCollectionThreshold; !(v >= 0 && v < 1) {
		return invalid("GarbageCollectionThreshold", v, "a number between 0 and 1, or 0 for none")
	}
	if v := c.MemoryLimit; v < 0 {
		return invalid("MemoryLimit", v, "bytes, or 0 for no limit")
	}
	if c.NoCaching {
		r.divisions, r.maxSplit = Divisions{}, math.MaxInt64
	}
	return r, nil
}

// roundSize is the size of the chunk that a request needs (PyTorch's round_size).
func (r *sizing) roundSize(bytes int64) int64 {
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

// roundDivision rounds up to one of d steps between the powers of two around bytes: with 4 divisions 4800 becomes 5120, the
// first of 4096, 5120, 6144 and 7168 that is large enough.
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

// roundUp is the next multiple of unit, from bytes on.
func roundUp(bytes, unit int64) int64 { return (bytes + unit - 1) / unit * unit }

// segmentSize is what the driver is asked for, for a request of rounded bytes (PyTorch's get_allocation_size).
func (r *sizing) segmentSize(rounded int64) int64 {
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

// poolKind tells PyTorch's small and large pool apart, which every pool, default or private, has of its own: small blocks
// that live long would keep large segments from being free as a whole. Its values index the statistics.
type poolKind uint8

const (
	smallPool poolKind = iota
	largePool
)

// String is PyTorch's name of the kind.
func (k poolKind) String() string {
	if k == smallPool {
		return "small"
	}
	return "large"
}

// kindFor is the kind of pool that serves a request of rounded bytes.
func kindFor(rounded int64) poolKind {
	if rounded <= smallLimit {
		return smallPool
	}
	return largePool
}

// shouldSplit is PyTorch's should_split: whether what a request leaves of a free chunk becomes a chunk of its own. If not,
// the block is larger than was asked for.
func (c *Cache) shouldSplit(m *chunk, r *request) bool {
	if m.segment.noSplit {
		return false
	}
	// PyTorch looks at the option here, not at the segment: with it small rests are kept in either kind of segment.
	rest := m.size - r.rounded
	if m.kind == smallPool || c.config.ExpandableSegments {
		return rest >= minBlock
	}
	return r.rounded < c.sizing.maxSplit && rest > smallLimit
}
