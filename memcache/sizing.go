package memcache

import (
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache/internal/placement"
)

// maxRequest is the size in bytes from which on a request is refused at once.
const maxRequest = 1 << 60

// rules returns the checked size rules of the configuration, with the defaults filled in.
func (c *Config) rules() (placement.Rules, error) {
	const mib = 1 << 20
	r := placement.Rules{Divisions: c.RoundupPower2Divisions, MaxSplit: math.MaxInt64, LargeSegment: sizes.LargeSegment,
		Expandable: c.ExpandableSegments, Exact: c.Exact}
	// The first invalid option is reported, with the valid values. The bounds keep the products
	// below from overflowing.
	invalid := func(option string, value any, want string) (placement.Rules, error) {
		return placement.Rules{}, fmt.Errorf("memcache: %s is %v: %w: want %s", option, value, ErrInvalid, want)
	}
	if v := c.LargeSegmentSizeMB; v != 0 {
		if v <= 10 || v > maxRequest/mib {
			return invalid("LargeSegmentSizeMB", v, "more than 10, or 0 for 20")
		}
		r.LargeSegment = v * mib
	}
	r.Granule = r.LargeSegment
	if v := c.ExpandableGranuleMB; v != 0 {
		if v < 2 || v%2 != 0 || v > maxRequest/mib {
			return invalid("ExpandableGranuleMB", v, "an even number of MiB, or 0 for the large segment's")
		}
		r.Granule = v * mib
	}
	if c.ExpandableRemap && !c.ExpandableSegments {
		return invalid("ExpandableRemap", true, "ExpandableSegments as well")
	}
	r.MaxNonSplitRounding = r.LargeSegment
	atLeast := fmt.Sprintf("at least the large segment's %d MiB, or 0", r.LargeSegment/mib)
	if v := c.MaxSplitSizeMB; v != 0 {
		if v < r.LargeSegment/mib {
			return invalid("MaxSplitSizeMB", v, atLeast+" for no limit")
		}
		r.MaxSplit = min(v, maxRequest/mib) * mib
	}
	if v := c.MaxNonSplitRoundingMB; v != 0 {
		if v < r.LargeSegment/mib {
			return invalid("MaxNonSplitRoundingMB", v, atLeast)
		}
		r.MaxNonSplitRounding = min(v, maxRequest/mib) * mib
	}
	for _, d := range c.RoundupPower2Divisions {
		if d < 0 || d&(d-1) != 0 || d > 1<<30 {
			return invalid("RoundupPower2Divisions", c.RoundupPower2Divisions, "powers of two, or 0")
		}
	}
	if v := c.GarbageCollectionThreshold; !(v >= 0 && v < 1) {
		return invalid("GarbageCollectionThreshold", v, "a number between 0 and 1, or 0 for none")
	}
	if v := c.ReuseAcrossStreams; v > ReuseBeforeGrowth {
		return invalid("ReuseAcrossStreams", v, "ReuseNever, ReuseWhenFull or ReuseBeforeGrowth")
	}
	if c.ReuseAcrossStreams != ReuseNever && c.Exact {
		return invalid("ReuseAcrossStreams", c.ReuseAcrossStreams, "ReuseNever with Exact, as PyTorch has no such option")
	}
	if v := c.ExpandableSegmentsReserve; !(v >= 0 && v < maxRequest) {
		return invalid("ExpandableSegmentsReserve", v, "a fraction of the device's memory, or bytes")
	}
	if v := c.MemoryLimit; v < 0 {
		return invalid("MemoryLimit", v, "bytes, or 0 for no limit")
	}
	if v := c.MaxCachedBytes; v < 0 {
		return invalid("MaxCachedBytes", v, "bytes, or 0 for no bound")
	}
	if c.NoCaching {
		r.Divisions, r.MaxSplit, r.Expandable = Divisions{}, math.MaxInt64, false
	}
	return r, nil
}

// segmentSize returns the size of the segment to request from the driver.
func (r *request) segmentSize(rules *placement.Rules) int64 {
	c := countsOf(r.Pool)
	if c == nil {
		return rules.SegmentSize(r.Bytes)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return rules.SegmentSizeIn(r.Pool, r.Bytes, c.stats.ReservedBytes.ofKind(r.Kind).Current)
}
