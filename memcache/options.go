package memcache

import (
	"fmt"
	"strconv"
	"strings"
)

// Options is the string that [ParseConfig] reads as this configuration, without its Observer: what a recording of the cache
// says, so that a replay can be under the same options. It is empty for the zero Config.
func (c Config) Options() string {
	var list []string
	option := func(name, value string) { list = append(list, name+":"+value) }
	number := func(name string, n int64) {
		if n != 0 {
			option(name, strconv.FormatInt(n, 10))
		}
	}
	ratio := func(name string, f float64) {
		if f != 0 {
			option(name, strconv.FormatFloat(f, 'g', -1, 64))
		}
	}
	set := func(name string, on bool) {
		if on {
			option(name, "True")
		}
	}
	number("max_split_size_mb", c.MaxSplitSizeMB)
	number("max_non_split_rounding_mb", c.MaxNonSplitRoundingMB)
	number("large_segment_size_mb", c.LargeSegmentSizeMB)
	if c.RoundupPower2Divisions != (Divisions{}) {
		var sizes []string
		for i, n := range c.RoundupPower2Divisions {
			sizes = append(sizes, fmt.Sprintf("%d:%d", 1<<i, n))
		}
		option("roundup_power2_divisions", "["+strings.Join(sizes, ",")+"]")
	}
	ratio("garbage_collection_threshold", c.GarbageCollectionThreshold)
	ratio("per_process_memory_fraction", c.PerProcessMemoryFraction)
	set("expandable_segments", c.ExpandableSegments)
	number("expandable_granule_mb", c.ExpandableGranuleMB)
	set("expandable_remap", c.ExpandableRemap)
	number("memory_limit", c.MemoryLimit)
	set("release_lock_on_cudamalloc", c.ReleaseLockOnCudaMalloc)
	set("no_caching", c.NoCaching)
	set("exact", c.Exact)
	return strings.Join(list, ",")
}
