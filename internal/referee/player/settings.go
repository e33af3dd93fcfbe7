package main

import "github.com/cistern-ml/cistern/memcache"

// setting is an option set that calls are made under.
type setting struct {
	name     string
	config   memcache.Config
	capacity int64 // of the device, in bytes
}

const mib = 1 << 20

// settings are all options, each with room enough, where no driver call fails for its own reasons, and in a device and under a
// limit that the calls keep full.
func settings() []setting {
	var roomy []setting
	add := func(name string, c memcache.Config) { roomy = append(roomy, setting{name, c, 1 << 44}) }
	collecting := func(c memcache.Config) memcache.Config {
		c.MemoryLimit, c.GarbageCollectionThreshold = 1<<43, 1e-5 // some 100 MiB
		return c
	}
	add("default", memcache.Config{})
	add("exact", memcache.Config{Exact: true})
	add("max split", memcache.Config{MaxSplitSizeMB: 20})
	add("max split, rounding, exact", memcache.Config{MaxSplitSizeMB: 25, MaxNonSplitRoundingMB: 30, Exact: true})
	add("large segment 12", memcache.Config{LargeSegmentSizeMB: 12})
	add("large segment 12, max split 12, exact", memcache.Config{LargeSegmentSizeMB: 12, MaxSplitSizeMB: 12, Exact: true})
	add("4 divisions", memcache.Config{RoundupPower2Divisions: memcache.AllDivisions(4)})
	add("divisions by size", memcache.Config{RoundupPower2Divisions: memcache.Divisions{8, 0, 2, 1, 16, 4, 2, 2}})
	add("collection", collecting(memcache.Config{}))
	add("collection, max split, exact", collecting(memcache.Config{MaxSplitSizeMB: 21, Exact: true}))
	add("expandable", memcache.Config{ExpandableSegments: true})
	add("expandable, exact", memcache.Config{ExpandableSegments: true, Exact: true})
	add("expandable, max split", memcache.Config{ExpandableSegments: true, MaxSplitSizeMB: 20})
	add("expandable, granule 2, remap", memcache.Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
	add("expandable, remap, max split", memcache.Config{ExpandableSegments: true, ExpandableRemap: true, MaxSplitSizeMB: 20})
	add("expandable, everything", collecting(memcache.Config{ExpandableSegments: true, MaxSplitSizeMB: 64, MaxNonSplitRoundingMB: 80,
		LargeSegmentSizeMB: 32, RoundupPower2Divisions: memcache.AllDivisions(8)}))
	add("no caching", memcache.Config{NoCaching: true, ExpandableSegments: true, MaxSplitSizeMB: 20})

	list := roomy
	for _, s := range roomy {
		s.name, s.capacity = "full device, "+s.name, 200*mib
		if s.config.GarbageCollectionThreshold > 0 {
			s.config.MemoryLimit, s.config.GarbageCollectionThreshold = 180*mib, 0.6
		}
		list = append(list, s)
	}
	for _, s := range roomy {
		s.name, s.capacity = "limit, "+s.name, 400*mib
		s.config.MemoryLimit = 150*mib + 12345
		if s.config.GarbageCollectionThreshold > 0 {
			s.config.GarbageCollectionThreshold = 0.7
		}
		list = append(list, s)
	}
	return list
}
