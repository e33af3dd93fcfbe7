package memcache

import (
	"fmt"
	"strconv"
	"strings"
)

// Options returns the configuration as an option string that [ParseConfig] parses back. It is ""
// for the zero Config. Options that PyTorch does not have are at the end. The Observer is not part
// of the string.
func (c Config) Options() string {
	var list []string
	add := func(set bool, key string, value any) {
		if set {
			list = append(list, fmt.Sprintf("%s:%v", key, value))
		}
	}
	add(c.MaxSplitSizeMB != 0, "max_split_size_mb", c.MaxSplitSizeMB)
	add(c.MaxNonSplitRoundingMB != 0, "max_non_split_rounding_mb", c.MaxNonSplitRoundingMB)
	add(c.LargeSegmentSizeMB != 0, "large_segment_size_mb", c.LargeSegmentSizeMB)
	add(c.RoundupPower2Divisions != Divisions{}, "roundup_power2_divisions", c.RoundupPower2Divisions)
	add(c.GarbageCollectionThreshold != 0, "garbage_collection_threshold", formatRatio(c.GarbageCollectionThreshold))
	add(c.PerProcessMemoryFraction != 0, "per_process_memory_fraction", formatRatio(c.PerProcessMemoryFraction))
	add(c.ExpandableSegments, "expandable_segments", "True")
	add(c.ExpandableSegmentsReserve != 0, "expandable_segments_reserve", formatReserve(c.ExpandableSegmentsReserve))
	add(c.ThrowOnCudaMallocOOM, "throw_on_cudamalloc_oom", "True")
	add(c.ReleaseLockOnCudaMalloc, "release_lock_on_cudamalloc", "True")
	add(c.GraphCaptureRecordStreamReuse, "graph_capture_record_stream_reuse", "True")
	add(c.ExpandableGranuleMB != 0, "expandable_granule_mb", c.ExpandableGranuleMB)
	add(c.ExpandableRemap, "expandable_remap", "True")
	add(c.MemoryLimit != 0, "memory_limit", c.MemoryLimit)
	add(c.MaxCachedBytes != 0, "max_cached_bytes", c.MaxCachedBytes)
	add(c.ReuseAcrossStreams != ReuseNever, "reuse_across_streams", c.ReuseAcrossStreams)
	add(c.NoCaching, "no_caching", "True")
	add(c.Exact, "exact", "True")
	return strings.Join(list, ",")
}

// formatRatio formats f with the fewest digits that parse back to f.
func formatRatio(f float64) string { return strconv.FormatFloat(f, 'g', -1, 64) }

// formatReserve formats a fraction as a number, and bytes as GiB with the suffix G.
func formatReserve(r float64) string {
	if r <= fullReserve {
		return formatRatio(r)
	}
	return formatRatio(r/(1<<30)) + "G"
}

// String returns the value of the option roundup_power2_divisions: one number for all sizes, or a
// list.
func (d Divisions) String() string {
	if d[0] != 0 && d == AllDivisions(d[0]) {
		return strconv.Itoa(d[0])
	}
	list := make([]string, len(d))
	for i, n := range d {
		list[i] = fmt.Sprintf("%d:%d", 1<<i, n)
	}
	same := len(d) - 1 // from this index on all values are equal
	for same > 1 && d[same] == d[same-1] {
		same--
	}
	if same < len(d)-1 {
		list = append(list[:same], fmt.Sprintf(">:%d", d[same]))
	}
	return "[" + strings.Join(list, ",") + "]"
}
