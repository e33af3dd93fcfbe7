package replay

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// A recording contains the events inside a call, but not their reasons: whether a free was complete
// when the call began or a flush in it waited for the free, whether a call of empty_cache came
// before, whether the driver or a limit refused (reading.go). The cache repeats the events only
// under the same reasons. A wrong guess shows later, in a driver call, an address or a sum that
// differs. So the search tries readings, likely ones first, skips those that contradict the cache's
// own state (plausible.go), and goes backwards from the first difference. A replay restarts each
// time, since a cache cannot be copied. That makes a search quadratic in bad cases, so it has a
// budget of work.

// search looks for readings under which a replay does not depart from the recording. It starts with
// the likely ones. If the replay departs, it restarts with the next reading of the last call that
// has one left.
type search struct {
	p           *recording.Program
	config      memcache.Config
	limit       int64 // memory limit in bytes; 0: none
	assumptions assumptions
	budget      *budget.Budget

	// the limit is that of the recorded options
	configured bool

	best    *run
	emptied int // calls of empty_cache without an entry
	unknown []string
}

// newSearch begins a search under a limit in bytes; 0: only that of the configuration's fraction.
func newSearch(p *recording.Program, config memcache.Config, limit int64, b *budget.Budget) *search {
	configured := limit > 0 && config.MemoryLimit == limit
	config.MemoryLimit = limit
	if f := config.PerProcessMemoryFraction; limit == 0 && f > 0 && f < 1 {
		limit = int64(f * float64(p.TotalMemory))
	}
	return &search{p: p, config: config, limit: limit, configured: configured, assumptions: assume(p, limit > 0, config.ExpandableSegments), budget: b}
}

// patience is the least number of steps that a search replays; a variable for tests.
var patience = 8_000_000

// newBudget returns the budget of one of several searches, which share at most half of the
// remaining work.
func newBudget(p *recording.Program, searches int) *budget.Budget {
	return p.Budget.Share(min(stepWork*int64(max(patience, 50*len(p.Steps))), p.Budget.Left()/2) / int64(searches))
}

// better reports whether s found a closer replay than o.
func (s *search) better(o *search) bool {
	if s.best.stopped != o.best.stopped {
		return s.best.stopped > o.best.stopped
	}
	return s.best.mismatches() < o.best.mismatches()
}

// replay makes one replay.
func (s *search) replay(choices []choice, stop bool) (*run, error) {
	m, err := newMachine(s.p, s.config, s.budget, s.p.Own, func(m *machine) error { return m.restore(s.config) })
	if err != nil {
		return nil, err
	}
	defer m.close()
	r := &run{machine: m, config: s.config, limit: s.limit, assumptions: s.assumptions, choices: choices, stop: stop, pending: int64(len(pendingAtStart(s.p)))}
	if r.play(s.emptied); r.err == nil && r.stopped == len(s.p.Steps) {
		r.work(blockWork * 2 * s.p.MostLive)
	}
	if r.err != nil {
		return nil, fmt.Errorf("%s: %w", s.p.Name, r.err)
	}
	if r.stopped == len(s.p.Steps) {
		s.unknown = r.compareStats()
		r.compareBlocks()
	}
	r.final = r.cache.Stats()
	return r, nil
}

// solve searches until a replay reaches the end of the recording, there is no reading left, or the
// budget is spent.
func (s *search) solve() error {
	var choices []choice
	for {
		r, err := s.replay(choices, true)
		if s.best != nil && errors.Is(err, budget.ErrExceeded) {
			break // with the result so far
		}
		if err != nil {
			return err
		}
		if s.best == nil || r.stopped > s.best.stopped || r.stopped == s.best.stopped && r.mismatches() < s.best.mismatches() {
			s.best = r
		}
		if r.stopped == len(s.p.Steps) && r.outcome.blocks == 0 {
			return s.repair()
		}
		choices = slices.Clone(r.choices)
		for len(choices) > 0 {
			last := &choices[len(choices)-1]
			if last.pick++; last.pick < len(last.readings) {
				break
			}
			choices = choices[:len(choices)-1]
		}
		if len(choices) == 0 {
			break
		}
	}
	if s.best.stopped == len(s.p.Steps) {
		return s.repair()
	}
	return nil
}

// verification makes the last replay, without stopping, and counts differences.
func (s *search) verification() (*Verification, error) {
	s.budget = s.p.Budget
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
	v.Notes = append(s.notes(), s.missing()...)
	if v.First != "" {
		v.Agree, v.Reason = min(r.departed, len(s.p.Entries)), s.reason(r)
	}
	return v, nil
}
