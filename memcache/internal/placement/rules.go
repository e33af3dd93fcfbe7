package placement

import (
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
// A free block is split if at least 512 bytes are left over in the small pool, or more than 1 MiB
// in the large one.

// Rules are the size rules of a configuration, in bytes, checked and with the defaults filled in.
// They are immutable; SetRules replaces an arena's rules.
type Rules struct {
	// Divisions are the steps between powers of two for requests below 2 MiB, from 2 MiB, from 4
	// MiB, …; 0 or 1: none.
	Divisions           [16]int
	MaxSplit            int64 // math.MaxInt64: no limit
	MaxNonSplitRounding int64
	LargeSegment        int64
	Granule             int64 // of expandable segments of the large pool
	Expandable          bool
	Exact               bool // without differences from PyTorch
}

// Division returns the index of a size in Rules.Divisions: its power of two, from 1 MiB on; smaller
// sizes share the first.
func Division(bytes int64) int {
	return min(max(bits.Len64(uint64(bytes))-1-20, 0), len(Rules{}.Divisions)-1)
}

// RoundSize returns the size of the chunk that a request needs (PyTorch's round_size).
func (r *Rules) RoundSize(bytes int64) int64 {
	if bytes <= 0 {
		return 0
	}
	if bytes > sizes.MinBlock {
		if d := int64(r.Divisions[Division(bytes)]); d > 1 && bytes > sizes.MinBlock*d {
			return roundDivision(bytes, d)
		}
	}
	return RoundUp(bytes, sizes.MinBlock)
}

// roundDivision rounds up to one of d steps between the powers of two around bytes: with 4
// divisions 4800 becomes 5120, the first of 4096, 5120, 6144 and 7168 that is large enough.
func roundDivision(bytes, d int64) int64 {
	floor := int64(1) << (bits.Len64(uint64(bytes)) - 1)
	if bytes == floor {
		return bytes
	}
	step := floor / d
	if step == 0 {
		return 2 * floor
	}
	return RoundUp(bytes, step)
}

// RoundUp returns bytes rounded up to a multiple of unit.
func RoundUp(bytes, unit int64) int64 { return (bytes + unit - 1) / unit * unit }

// SegmentSize returns the size to request from the driver for a request of rounded bytes (PyTorch's
// get_allocation_size).
func (r *Rules) SegmentSize(rounded int64) int64 {
	switch {
	case rounded == 0:
		return 0
	case rounded <= sizes.SmallLimit:
		return sizes.SmallSegment
	case rounded < sizes.MinLarge:
		return r.LargeSegment
	default:
		return RoundUp(rounded, sizes.RoundLarge)
	}
}

// SegmentSizeIn is SegmentSize in a pool that has reserved reserved bytes for large chunks. In a
// StartSmall pool the segments for requests below 10 MiB grow with the pool, up to LargeSegment.
// The first is the next multiple of 2 MiB that leaves a rest large enough to split off; later ones
// are as large as the reserved bytes. So the pool reserves about twice its maximum need, and from
// LargeSegment on as much as every pool. Expandable segments grow by their granule.
func (r *Rules) SegmentSizeIn(p *Pool, rounded, reserved int64) int64 {
	bytes := r.SegmentSize(rounded)
	if p == nil || !p.StartSmall || r.Expandable || r.Exact || rounded <= sizes.SmallLimit || rounded >= sizes.MinLarge {
		return bytes
	}
	return min(bytes, max(RoundUp(rounded+sizes.SmallLimit+sizes.MinBlock, sizes.RoundLarge), reserved))
}

// GranuleSize returns the unit in which an expandable segment of a kind grows, in bytes.
func (r *Rules) GranuleSize(k Kind) int64 {
	if k == Small {
		return sizes.SmallSegment
	}
	return r.Granule
}

// Kind distinguishes PyTorch's small and large pool, which every pool, default or private,
// contains: small blocks that live long would keep large segments from becoming entirely free. Its
// values index statistics.
type Kind uint8

// The kinds.
const (
	Small Kind = iota
	Large
)

// String returns PyTorch's name of the kind.
func (k Kind) String() string {
	if k == Small {
		return "small"
	}
	return "large"
}

// KindFor returns the kind of pool that serves a request of rounded bytes.
func KindFor(rounded int64) Kind {
	if rounded <= sizes.SmallLimit {
		return Small
	}
	return Large
}
