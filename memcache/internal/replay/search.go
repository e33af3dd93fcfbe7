package replay

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/memcache/internal/recording"
)

// search looks for readings under which a replay departs from the recording nowhere. It goes on from the
// likely readings; where the replay departs, it replays from the start with the next reading of the last call that
// has one.
type search struct {
	p           *recording.Program
	config      memcache.Config
	assumptions assumptions
	budget      *budget

	best    *run
	emptied int // calls of empty_cache that left no entry
	unknown []string
}

func newSearch(p *recording.Program, config memcache.Config, limit int64, b *budget) *search {
	config.MemoryLimit = limit
	limited := limit > 0 || config.PerProcessMemoryFraction > 0 && config.PerProcessMemoryFraction < 1
	return &search{p: p, config: config, assumptions: assume(p, limited), budget: b}
}

// budget bounds a search, in steps replayed.
type budget struct{ steps, limit int }

// patience is how many steps a search replays, at least; a variable for tests.
var patience = 8_000_000

// newBudget is the part of one of so many searches.
func newBudget(p *recording.Program, searches int) *budget {
	return &budget{limit: max(patience, 50*len(p.Steps)) / searches}
}

func (b *budget) spent() bool { return b.steps >= b.limit }

// better reports whether s found a closer replay than o.
func (s *search) better(o *search) bool {
	if s.best.step != o.best.step {
		return s.best.step > o.best.step
	}
	return s.best.mismatches() < o.best.mismatches()
}

// replay makes one replay.
func (s *search) replay(choices []choice, stop bool) (*run, error) {
	m, err := newMachine(s.p, s.config)
	if err != nil {
		return nil, err
	}
	defer m.close()
	r := &run{machine: m, assumptions: s.assumptions, choices: choices, stop: stop}
	r.play(s.emptied)
	s.budget.steps += r.step
	if r.step == len(s.p.Steps) {
		s.unknown = r.compareStats()
		r.compareBlocks()
	}
	r.final = r.cache.Stats()
	return r, nil
}

func (s *search) solve() error {
	var choices []choice
	for {
		r, err := s.replay(choices, true)
		if err != nil {
			return err
		}
		if s.best == nil || r.step > s.best.step || r.step == s.best.step && r.mismatches() < s.best.mismatches() {
			s.best = r
		}
		if r.step == len(s.p.Steps) {
			return s.repair()
		}
		choices = cloneChoices(r.choices)
		for len(choices) > 0 {
			last := &choices[len(choices)-1]
			if last.pick++; last.pick < len(last.readings) {
				break
			}
			choices = choices[:len(choices)-1]
		}
		if len(choices) == 0 || s.budget.spent() {
			return nil
		}
	}
}

// repair changes one reading after the other where all calls agree and the counters at the end do not. A collection, a
// flush and an empty_cache may release the same blocks, and only the counters tell them apart.
func (s *search) repair() error {
	for _, useful := range []func(r, now reading) bool{
		func(r, now reading) bool { return r.empty != now.empty && r.empty == (s.retries() > 0) },
		func(r, now reading) bool { return r.full == now.full },
	} {
		for i := 0; i < len(s.best.choices) && s.retries() != 0; i++ {
			if err := s.reread(i, useful); err != nil {
				return err
			}
		}
	}
	return s.reveal()
}

// retries is how many more attempts were tried again than in the recording.
func (s *search) retries() int64 {
	want, ok := s.p.Stats["num_alloc_retries"]
	if !ok || s.budget.spent() {
		return 0
	}
	return s.best.final.NumAllocRetries - want
}

// reread tries the other readings of choice i, and keeps what is closer to the recording.
func (s *search) reread(i int, useful func(r, now reading) bool) error {
	for pick, r := range s.best.choices[i].readings {
		now := s.best.choices[i]
		if pick == now.pick || !useful(r, now.readings[now.pick]) || s.retries() == 0 {
			continue
		}
		choices := cloneChoices(s.best.choices)
		choices[i].pick = pick
		r, err := s.replay(choices, true)
		if err != nil {
			return err
		}
		if r.step == len(s.p.Steps) && r.distance() < s.best.distance() {
			s.best = r
			if i >= len(r.choices) {
				break
			}
		}
	}
	return nil
}

// distance is how far the end of a replay is from the end of the recording. Flushes that are missing count for
// nothing: each may have been an empty_cache.
func (r *run) distance() int64 {
	d := int64(r.addresses + r.calls + r.outcome.blocks + r.outcome.stats)
	want, ok := r.p.Stats["num_alloc_retries"]
	syncs, ok2 := r.p.Stats["num_sync_all_streams"]
	if !ok || !ok2 {
		return d
	}
	d -= min(1, abs(r.final.NumSyncAllStreams-syncs))
	d += 2 * abs(r.final.NumAllocRetries-want)
	return d + max(0, r.final.NumSyncAllStreams-r.final.NumAllocRetries-(syncs-want))
}

func abs(n int64) int64 { return max(n, -n) }

// maxHidden bounds the calls of empty_cache that left no entry.
const maxHidden = 100_000

func cloneChoices(c []choice) []choice { return slices.Clone(c) }

// reveal explains flushes that only the counters show by calls of empty_cache that released nothing.
func (s *search) reveal() error {
	got, want := s.best.final, s.p.Stats
	missing := want["num_sync_all_streams"] - got.NumSyncAllStreams
	if s.best.mismatches() == 0 || missing <= 0 || missing > maxHidden || got.NumAllocRetries != want["num_alloc_retries"] {
		return nil
	}
	s.emptied = int(missing)
	r, err := s.replay(cloneChoices(s.best.choices), true)
	if err != nil {
		return err
	}
	if r.mismatches() < s.best.mismatches() {
		s.best = r
	} else {
		s.emptied = 0
	}
	return nil
}

// verification makes the last replay, without stopping, and counts.
func (s *search) verification() (*Verification, error) {
	r, err := s.replay(s.best.choices, false)
	if err != nil {
		return nil, err
	}
	v := &Verification{
		AddressMismatches: r.addresses, CallMismatches: r.calls, StatMismatches: r.stats, BlockMismatches: r.outcome.blocks, First: r.first,
		PeakAllocated: r.final.AllocatedBytes.All.Peak, PeakReserved: r.final.ReservedBytes.All.Peak,
		Retries: r.final.NumAllocRetries, OOMs: r.final.NumOOMs, DriverCalls: r.final.NumDeviceAlloc + r.final.NumDeviceFree,
		Elapsed: r.elapsed, Calls: len(s.p.Steps),
	}
	for i := range s.p.Steps {
		if k := s.p.Steps[i].Kind; k == recording.StepAlloc || k == recording.StepOOM {
			v.Allocs++
		}
	}
	v.Notes = s.notes()
	return v, nil
}

func (s *search) notes() (notes []string) {
	if s.p.Stats == nil {
		notes = append(notes, "the recording has no statistics to compare")
	}
	if s.p.Segments == nil {
		notes = append(notes, "the recording has no final blocks to compare")
	}
	if s.config.MemoryLimit > 0 && !s.p.LimitKnown {
		notes = append(notes, fmt.Sprintf("the memory limit is not recorded; %d bytes fit", s.config.MemoryLimit))
	}
	if s.emptied > 0 {
		notes = append(notes, fmt.Sprintf("%d calls of empty_cache left no entry of their own", s.emptied))
	}
	for _, name := range s.unknown {
		notes = append(notes, fmt.Sprintf("the statistic %s is not known", name))
	}
	return notes
}
