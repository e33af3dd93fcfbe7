// Package replay lets a cache make the calls of a recording: to verify that it does what PyTorch's allocator
// did, and to see what it does under other options.
package replay

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// Verification is how the cache's doings differ from a recording.
type Verification struct {
	Allocs            int // allocations, failed ones included
	AddressMismatches int
	CallMismatches    int // driver calls, and frees that are complete here but not there
	StatMismatches    int
	BlockMismatches   int
	// First says where the cache departs first; "" if nowhere.
	First string
	// Notes say what had to be inferred.
	Notes []string

	PeakAllocated, PeakReserved int64 // bytes
	Retries, OOMs, DriverCalls  int64 // Retries are -1 if the calls were not made again and the recording does not say
	// Elapsed is the time of the replay, for Calls calls; 0 if they were not made again.
	Elapsed time.Duration
	Calls   int
}

// Mismatches is their sum; 0 if the cache did the same as the recorded allocator.
func (v *Verification) Mismatches() int {
	return v.AddressMismatches + v.CallMismatches + v.StatMismatches + v.BlockMismatches
}

// Verify replays a program, and compares every address, every driver call in order, the statistics and the final
// blocks.
//
// One of memcache's own says what one of PyTorch leaves out, so that nothing is inferred. If several goroutines were in the
// cache at once, or something was done that a replay can't do again, its calls are not made: then only its books are checked,
// whether every entry agrees with those before it, and with the statistics and blocks at the end.
func Verify(p *recording.Program) (*Verification, error) {
	if p.Own {
		return verifyOwn(p)
	}
	best, err := verify(p)
	if err != nil {
		return nil, err
	}
	return best.verification()
}

// verify searches for the limit and the readings under which a replay is closest to the recording.
func verify(p *recording.Program) (*search, error) {
	config, err := Config(p)
	if err != nil {
		return nil, err
	}
	if p.TotalMemory == 0 {
		config.PerProcessMemoryFraction = 0 // of an unknown size: inferred as a limit
	}
	list, err := promising(p, config)
	if err != nil {
		return nil, err
	}
	var best *search
	for _, limit := range list {
		s := newSearch(p, config, limit, newBudget(p, len(list)))
		if err := s.solve(); err != nil {
			return nil, err
		}
		if best == nil || s.better(best) {
			best = s
		}
		if best.best.mismatches() == 0 {
			break
		}
	}
	return best, nil
}

// promising are the limits under which likely readings get farthest, the best first.
func promising(p *recording.Program, config memcache.Config) ([]int64, error) {
	list := limits(p, config)
	const enough = 12
	if len(list) <= enough+1 {
		return list, nil
	}
	if !assume(p, true, false).retried { // likely there is none
		if s := newSearch(p, config, 0, newBudget(p, 4)); s.solve() == nil && s.best.mismatches() == 0 {
			return []int64{0}, nil
		}
	}
	got, budget := make(map[int64]int), newBudget(p, 1)
	for _, limit := range list {
		if budget.spent() {
			break
		}
		r, err := newSearch(p, config, limit, budget).replay(nil, true)
		if err != nil {
			return nil, err
		}
		if got[limit] = r.step; r.mismatches() == 0 {
			return []int64{limit}, nil
		}
	}
	slices.SortStableFunc(list, func(a, b int64) int { return got[b] - got[a] })
	return append(list[:enough:enough], 0), nil
}

// ParseOptions is [memcache.ParseConfig], but the options are Exact unless they say exact:False, or something that there is not with Exact.
func ParseOptions(options string) (memcache.Config, error) {
	if c, err := memcache.ParseConfig(options); err != nil || c.ReuseAcrossStreams != memcache.ReuseNever {
		return c, err
	}
	return memcache.ParseConfig("exact:True," + options)
}

// OptionsFor is ParseOptions of what is to be compared with a recording: of one of memcache's own the options are Exact, unless
// they say, if it was. label names them, with what they did not say.
func OptionsFor(p *recording.Program, options string) (config memcache.Config, label string, err error) {
	if !p.Own {
		config, err = ParseOptions(options)
		return config, options, err
	}
	own, err := memcache.ParseConfig(p.Conf)
	if err != nil {
		return config, options, fmt.Errorf("memreplay: %s: the recorded options: %w", p.Name, err)
	}
	for i, exact := range []bool{own.Exact, !own.Exact} {
		said := "exact:False"
		if exact {
			said = "exact:True"
		}
		c, err := memcache.ParseConfig(said + "," + options)
		switch {
		case err != nil && i > 0: // these options are never so
		case err != nil:
			return c, options, err
		case i == 0:
			config, label = c, strings.TrimSuffix(said+","+options, ",")
		case c.Exact == config.Exact:
			label = options // it says so itself
		}
	}
	return config, label, nil
}

// RecordedOptions is [Config], and how OptionsFor labels the recorded options.
func RecordedOptions(p *recording.Program) (config memcache.Config, label string, err error) {
	if _, label, err = OptionsFor(p, p.Conf); err == nil {
		config, err = Config(p)
	}
	return config, label, err
}

// Config is the configuration of a recording. One of memcache's own says what the memory limit really was, whether of its
// options or set later: that is p.Limit, and no limit is in the configuration.
func Config(p *recording.Program) (memcache.Config, error) {
	parse := ParseOptions
	if p.Own {
		parse = memcache.ParseConfig // it says itself whether it was exact
	}
	config, err := parse(p.Conf)
	if err != nil {
		return config, fmt.Errorf("memreplay: %s: the recorded options: %w", p.Name, err)
	}
	if p.Own {
		config.PerProcessMemoryFraction, config.MemoryLimit = 0, 0
	}
	if s := p.Settings; s != nil {
		config.MaxSplitSizeMB = max(s.MaxSplitSize, 0) >> 20
		config.GarbageCollectionThreshold = s.GarbageCollectionThreshold
		config.ExpandableSegments = s.ExpandableSegments
		for i, n := range s.RoundupPower2Divisions {
			config.RoundupPower2Divisions[i] = int(n)
		}
	}
	return config, nil
}

// NsPerOp is the mean time of a call in nanoseconds, the null device's part included.
func (v *Verification) NsPerOp() float64 {
	return nsPerOp(v.Elapsed, v.Calls)
}
