package memcache

// setting is a configuration that programs run under.
type setting struct {
	name     string
	config   Config
	capacity int64 // of the device
	tight    bool  // there is less memory than programs want, limits change, and the driver fails now and then
	model    bool  // the model covers it
	changing bool  // programs change the options
}

// settings are all option sets that programs run under. Those that are not tight give the same observable results.
var settings = func() []setting {
	const roomy, half = 1 << 44, 48 << 20
	// Garbage collection needs a limit. This one is never reached, and its threshold is some 100 MiB.
	collecting := func(c Config) Config {
		c.MemoryLimit, c.GarbageCollectionThreshold = 1<<43, 1e-5
		return c
	}
	var list []setting
	add := func(name string, c Config) {
		list = append(list, setting{name: name, config: c, capacity: roomy, model: true})
	}
	add("default", Config{})
	add("exact", Config{Exact: true})
	add("max split", Config{MaxSplitSizeMB: 20})
	add("max split 25, rounding 30, exact", Config{MaxSplitSizeMB: 25, MaxNonSplitRoundingMB: 30, Exact: true})
	add("large segment 12", Config{LargeSegmentSizeMB: 12})
	add("large segment 12, max split 12", Config{LargeSegmentSizeMB: 12, MaxSplitSizeMB: 12, Exact: true})
	add("4 divisions", Config{RoundupPower2Divisions: AllDivisions(4)})
	add("divisions by size", Config{RoundupPower2Divisions: Divisions{8, 0, 2, 1, 16, 4, 2, 2}})
	add("collection", collecting(Config{}))
	add("collection, max split 21, exact", collecting(Config{MaxSplitSizeMB: 21, Exact: true}))
	add("expandable", Config{ExpandableSegments: true})
	add("expandable, exact", Config{ExpandableSegments: true, Exact: true})
	add("expandable, max split", Config{ExpandableSegments: true, MaxSplitSizeMB: 20})
	add("expandable, granule 2, remap", Config{ExpandableSegments: true, ExpandableGranuleMB: 2, ExpandableRemap: true})
	add("expandable, remap, max split", Config{ExpandableSegments: true, ExpandableRemap: true, MaxSplitSizeMB: 20})
	add("expandable, everything", collecting(Config{ExpandableSegments: true, MaxSplitSizeMB: 64, MaxNonSplitRoundingMB: 80,
		LargeSegmentSizeMB: 32, RoundupPower2Divisions: AllDivisions(8)}))
	add("no caching", Config{NoCaching: true, ExpandableSegments: true, MaxSplitSizeMB: 20})
	// Which streams wait for which follows from events, of which the model knows nothing.
	for _, c := range []Config{
		{ReuseAcrossStreams: ReuseWhenFull},
		{ReuseAcrossStreams: ReuseBeforeGrowth, MaxSplitSizeMB: 20},
		{ReuseAcrossStreams: ReuseBeforeGrowth, ExpandableSegments: true},
	} {
		add("reuse "+c.ReuseAcrossStreams.String(), c)
		list[len(list)-1].model = false
	}
	for _, exact := range []bool{false, true} {
		add("changing", collecting(Config{Exact: exact}))
		list[len(list)-1].changing = true
	}
	for _, s := range list[:len(list):len(list)] {
		s.name, s.tight = "tight, "+s.name, true
		if s.config.MemoryLimit = 3 * half; s.config.GarbageCollectionThreshold > 0 {
			s.config.GarbageCollectionThreshold = 0.6
		}
		s.capacity = 4 * half
		list = append(list, s)
	}
	return list
}()
