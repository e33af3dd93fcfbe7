package memcache

import (
	"fmt"
	"math/rand/v2"
	"strings"
)

// setting is a configuration that programs run under, with its device and environment.
type setting struct {
	config   Config
	capacity int64 // of the device
	tight    bool  // there is less memory than programs want, limits change, and the driver fails now and then
	changing bool  // programs change the options
	far      bool  // a stream of another device uses blocks
}

// choices are the choices for each option; 0: the default.
type choices [len(optionTable)]byte

// optionTable lists the options that programs run under in all combinations. A choice that others
// make invalid is not made.
var optionTable = [...]struct {
	name string
	set  func(s *setting, choice int)
	most byte
}{
	{"exact", func(s *setting, _ int) { s.config.Exact = true }, 1},
	{"no caching", func(s *setting, _ int) { s.config.NoCaching = true }, 1},
	{"large segment", func(s *setting, i int) { s.config.LargeSegmentSizeMB = []int64{12, 32}[i] }, 2},
	{"max split", func(s *setting, i int) { s.config.MaxSplitSizeMB = []int64{12, 20, 21, 25, 64}[i] }, 5},
	{"rounding", func(s *setting, i int) { s.config.MaxNonSplitRoundingMB = []int64{21, 30, 80}[i] }, 3},
	{"divisions", func(s *setting, i int) {
		s.config.RoundupPower2Divisions = []Divisions{AllDivisions(4), AllDivisions(8), {8, 0, 2, 1, 16, 4, 2, 2}}[i]
	}, 3},
	// Garbage collection needs a limit. This one is never reached, and its threshold is some 100 MiB.
	{"collection", func(s *setting, _ int) { s.config.MemoryLimit, s.config.GarbageCollectionThreshold = 1<<43, 1e-5 }, 1},
	{"expandable", func(s *setting, _ int) { s.config.ExpandableSegments = true }, 1},
	{"granule", func(s *setting, i int) { s.config.ExpandableGranuleMB = []int64{2, 8}[i] }, 2},
	{"remap", func(s *setting, _ int) { s.config.ExpandableRemap = true }, 1},
	{"reuse", func(s *setting, i int) {
		s.config.ReuseAcrossStreams = []StreamReuse{ReuseWhenFull, ReuseBeforeGrowth}[i]
	}, 2},
	{"rejecting", func(s *setting, _ int) { s.config.ThrowOnCudaMallocOOM = true }, 1},
	{"tight", func(s *setting, _ int) {
		const half = 48 << 20
		s.tight, s.capacity = true, 4*half
		if s.config.MemoryLimit = 3 * half; s.config.GarbageCollectionThreshold > 0 {
			s.config.GarbageCollectionThreshold = 0.6
		}
	}, 1},
	{"changing", func(s *setting, _ int) { s.changing = true }, 1},
	{"far", func(s *setting, _ int) { s.far = true }, 1},
}

// noCaching is the index of the option that disables most others.
const noCaching = 1

// randomChoices chooses values for half of the options.
func randomChoices(r *rand.Rand) (c choices) {
	for i := range c {
		if r.IntN(2) == 0 && (i != noCaching || r.IntN(4) == 0) {
			c[i] = 1 + byte(r.IntN(int(optionTable[i].most)))
		}
	}
	return c
}

// setting applies the choices.
func (c choices) setting() setting {
	s := setting{capacity: 1 << 44}
	for i, choice := range c {
		if choice == 0 {
			continue
		}
		before := s
		optionTable[i].set(&s, int(choice-1)%int(optionTable[i].most))
		if _, err := s.config.rules(); err != nil {
			s = before
		}
	}
	return s
}

// modelled reports whether the model covers the options. It does not model the waits between
// streams that events determine.
func (s *setting) modelled() bool { return s.config.ReuseAcrossStreams == ReuseNever }

func (c choices) String() string {
	var list []string
	for i, choice := range c {
		if choice > 0 {
			list = append(list, fmt.Sprintf("%s %d", optionTable[i].name, choice))
		}
	}
	return "options: " + strings.Join(list, ", ")
}
