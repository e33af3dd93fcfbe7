package replay

import (
	"math"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/sizes"
	"github.com/cistern-ml/cistern/memcache"
)

// granule divides the size of every segment, in bytes.
const granule = sizes.SmallSegment

// limits returns the memory limits to try, in bytes, likely ones first; 0 is none. Every attempt to
// allocate a segment bounds an unknown limit. With r bytes reserved, success shows that the limit
// is at least r plus the segment. An out-of-memory error, or a release before the attempt, shows
// that it is less.
func limits(p *recording.Program, config memcache.Config) []int64 {
	if p.LimitKnown {
		return []int64{p.Limit}
	}
	if config.MemoryLimit > 0 {
		return []int64{config.MemoryLimit}
	}
	b := bound(p, config)
	if !b.released && b.high == math.MaxInt64 {
		return []int64{0}
	}
	if config.GarbageCollectionThreshold > 0 && !config.ExpandableSegments {
		return append(b.collecting(config.GarbageCollectionThreshold), 0)
	}
	if b.low >= b.high || b.low == 0 {
		return []int64{0}
	}
	if b.high == math.MaxInt64 && !releasesPart(config) && !assume(p, true, false).retriedSurely() {
		// each release may have been an empty_cache
		return []int64{0, b.low}
	}
	return []int64{b.low, 0}
}

// releasesPart reports whether a request may release only some of the free segments, unlike
// empty_cache.
func releasesPart(config memcache.Config) bool { return config.MaxSplitSizeMB > 0 }

// bounds bound a limit: low <= limit < high.
type bounds struct {
	low, high int64
	most      int64 // reserved bytes at the peak
	released  bool  // an allocation gave segments back
}

// bound derives the bounds of the limit from the recording.
func bound(p *recording.Program, config memcache.Config) bounds {
	b := bounds{high: math.MaxInt64}
	reserved := p.Start.Reserved()
	b.most = reserved
	for i := range p.Steps {
		s := &p.Steps[i]
		call := s.Kind == recording.StepAlloc || s.Kind == recording.StepOOM
		var segment int64
		if call {
			segment = config.SegmentSize(p.Entries[s.Entry].Size)
		}
		grown := false
		for _, e := range p.Inside(s) {
			switch e.Action {
			case recording.SegmentAlloc, recording.SegmentMap:
				if call && !grown {
					b.low = max(b.low, reserved+segment)
				}
				grown = true
				reserved += e.Size
			case recording.SegmentFree, recording.SegmentUnmap:
				b.released = b.released || call
				reserved -= e.Size
			}
			b.most = max(b.most, reserved)
		}
		if s.Kind == recording.StepOOM {
			b.high = min(b.high, reserved+segment)
		}
	}
	return b
}

// maxLimits bounds the number of limits that are tried with garbage collection.
const maxLimits = 2048

// collecting returns limits with different thresholds. Reserved memory is a multiple of a granule,
// so only the whole granules of a threshold matter.
func (b bounds) collecting(threshold float64) (list []int64) {
	// There was a collection, so the threshold is below the peak.
	high := min(b.high, int64(min(float64(b.most)/threshold, recording.MaxSize))+granule)
	low := max(b.low, 1)
	for limit := low; limit < high && len(list) < maxLimits; {
		list = append(list, limit)
		next := int64(threshold*float64(limit))/granule + 1
		if float64(next*granule)/threshold >= recording.MaxSize {
			break
		}
		at := int64(float64(next*granule) / threshold)
		for int64(threshold*float64(at)) < next*granule {
			at++
		}
		limit = at
	}
	return list
}
