package ranks

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"time"
)

// mostWaits is how many steps a report lists.
const mostWaits = 20

// Report is the sum of all ranks' steps.
type Report struct {
	WorldSize int    `json:"world_size"`
	Ranks     []Rank `json:"ranks"` // of length WorldSize
	// Matched counts the operations that all ranks reported, Unmatched those that some ranks lack.
	Matched   int64 `json:"matched"`
	Unmatched int64 `json:"unmatched"`
	// Waited has an entry for each rank that came last in an operation: how long each rank, in a
	// slice of length WorldSize, waited for it.
	Waited map[int][]time.Duration `json:"waited_ns"`
	// Steps counts the steps with a rank that came last: it held up the others for longer than any
	// other rank did there.
	Steps int64 `json:"steps"`
	// Straggler is the rank that comes last in more steps than chance explains (its P is below
	// 0.01) and holds up the others for 1 % of the steps' time or more. If several ranks do, it is
	// the one with the largest HeldUp. -1: none does.
	Straggler int    `json:"straggler"`
	Test      string `json:"test"` // the name of the test that each rank's P is of
	// Waits are the 20 steps with the most waiting.
	Waits []Wait   `json:"waits"`
	Notes []string `json:"notes"` // about missing data
}

// Wait is a step in which ranks waited.
type Wait struct {
	Step   int64         `json:"step"`
	Waited time.Duration `json:"waited_ns"` // by all ranks together
	// Last is the rank that came last in the step; -1: two held up the others for as long.
	Last   int           `json:"last"`
	HeldUp time.Duration `json:"held_up_ns"` // by Last, 0 without one

	// TraceID is [trace.StepProfile.TraceID], of the lowest rank that has one if the ranks don't
	// share it. TraceURL is its address by [Options.TraceURL]. "": there is none.
	TraceID  string `json:"trace_id,omitempty"`
	TraceURL string `json:"trace_url,omitempty"`
}

func newReport(size int) *Report {
	return &Report{WorldSize: size, Ranks: make([]Rank, size), Waited: map[int][]time.Duration{}, Straggler: -1}
}

// Report returns the report of what was added so far. It shares nothing with the Merger, which can
// go on. Without any profile it returns an error that wraps [ErrInvalid].
func (m *Merger) Report() (*Report, error) {
	if m.report == nil {
		return nil, fmt.Errorf("ranks: %w: there is no profile of a step", ErrInvalid)
	}
	r := *m.report
	r.Ranks = slices.Clone(r.Ranks)
	r.Waited = maps.Clone(r.Waited)
	for last, column := range r.Waited {
		r.Waited[last] = slices.Clone(column)
	}
	var steps []*step
	for _, name := range slices.Sorted(maps.Keys(m.runs)) {
		run := m.runs[name]
		r.Unmatched += int64(len(run.open))
		for _, s := range run.steps {
			if s.waited > 0 {
				steps = append(steps, s)
			}
			if last := s.last(); last.rank >= 0 {
				r.Steps++
				r.Ranks[last.rank].LastSteps++
			}
		}
	}
	slices.SortStableFunc(steps, func(x, y *step) int {
		return cmp.Or(cmp.Compare(y.waited, x.waited), cmp.Compare(x.number, y.number))
	})
	for _, s := range steps[:min(len(steps), mostWaits)] {
		r.Waits = append(r.Waits, s.wait(m.traceURL))
	}
	r.judge()
	r.note()
	return &r, nil
}
