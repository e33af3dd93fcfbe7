// Package replay makes a cache repeat the calls of a recording. [Verify] checks that the cache does
// what the recorded allocator did, and [Scenario.Estimate] computes what it would have done under
// other options.
package replay

import (
	"errors"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// Verification has the differences between a replay and its recording.
type Verification struct {
	Allocs            int // allocations, failed ones included
	AddressMismatches int
	// driver calls, and frees that are complete here but not in the recording
	CallMismatches  int
	StatMismatches  int
	BlockMismatches int
	// First describes the first difference, Agree is the number of entries before it, and Reason
	// its likely cause. They are empty if nothing differs.
	First  string
	Agree  int
	Reason string
	// Notes describe inferred facts.
	Notes []string

	PeakAllocated, PeakReserved int64 // bytes
	// Retries are -1 if the calls were not repeated and the recording does not have them
	Retries, OOMs, DriverCalls int64
	// Elapsed is the time of the replay of Calls calls; 0 if they were not repeated.
	Elapsed time.Duration
	Calls   int
}

// Mismatches returns the sum of all mismatches; 0 if the cache did the same as the recorded
// allocator.
func (v *Verification) Mismatches() int {
	return v.AddressMismatches + v.CallMismatches + v.StatMismatches + v.BlockMismatches
}

// Verify replays a program, and compares every address, every driver call in order, the statistics
// and the final blocks.
//
// A recording of memcache's own contains the facts that one of PyTorch omits, so nothing is
// inferred. If several goroutines were in the cache at once, or a call cannot be repeated, Verify
// only checks the recording's books: whether every entry agrees with those before it, and with the
// statistics and blocks at the end.
func Verify(p *recording.Program) (*Verification, error) {
	if p.Own {
		v, err := verifyOwn(p)
		if err == nil && slices.ContainsFunc(p.Entries, func(e recording.Entry) bool {
			return e.Action == recording.ResetPeaks || e.Action == recording.ResetTotals
		}) {
			v.Notes = append(v.Notes, "the program reset its statistics: peaks, retries and requests out of memory count from then on")
		}
		return v, err
	}
	best, err := verify(p)
	if err != nil {
		return nil, err
	}
	return best.verification()
}

// verify searches for the limit and the readings whose replay is closest to the recording.
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
	var best, emptied *search
	for i, limit := range list {
		s := newSearch(p, config, limit, newBudget(p, len(list)))
		if err := s.solve(); best != nil && errors.Is(err, budget.ErrExceeded) {
			break
		} else if err != nil {
			return nil, err
		}
		if best == nil || s.better(best) {
			best = s
		}
		if best.best.mismatches() > 0 {
			continue
		}
		if r := best.best; limit == 0 && i+1 < len(list) && emptied == nil && r.unclear > 1 && r.sure == 0 {
			// a limit that explains all of them is likelier
			emptied, best = best, nil
			continue
		}
		break
	}
	if emptied != nil && (best == nil || best.best.mismatches() > 0) {
		best = emptied
	}
	return best, nil
}

// promising returns the limits under which likely readings get farthest, the best first.
func promising(p *recording.Program, config memcache.Config) ([]int64, error) {
	list := limits(p, config)
	const enough = 12
	if len(list) <= enough+1 {
		return list, nil
	}
	if !assume(p, true, false).retried { // probably there is none
		if s := newSearch(p, config, 0, newBudget(p, 4)); s.solve() == nil && s.best.mismatches() == 0 {
			return []int64{0}, nil
		}
	}
	got, share := make(map[int64]int), newBudget(p, 1)
	for _, limit := range list {
		r, err := newSearch(p, config, limit, share).replay(nil, true)
		if errors.Is(err, budget.ErrExceeded) && len(got) > 0 {
			break
		}
		if err != nil {
			return nil, err
		}
		if got[limit] = r.stopped; r.mismatches() == 0 {
			return []int64{limit}, nil
		}
	}
	slices.SortStableFunc(list, func(a, b int64) int { return got[b] - got[a] })
	return append(list[:enough:enough], 0), nil
}

// NsPerOp returns the mean time of a call in nanoseconds, the null device's part included.
func (v *Verification) NsPerOp() float64 {
	return nsPerOp(v.Elapsed, v.Calls)
}
