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
	// Waited has an entry for each rank that came last in an operation: how long each rank, in a slice
	// of length WorldSize, waited for it.
	Waited map[int][]time.Duration `json:"waited_ns"`
	// Straggler is the rank that held up the others for the longest time, or -1 if none did.
	Straggler int `json:"straggler"`
	// Waits are the 20 steps with the most waiting.
	Waits []Wait   `json:"waits"`
	Notes []string `json:"notes"` // about missing data
}

// Wait is a step in which ranks waited.
type Wait struct {
	Step   int64         `json:"step"`
	Waited time.Duration `json:"waited_ns"` // by all ranks together
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
	for rank, x := range r.Ranks {
		if x.HeldUp > 0 && (r.Straggler < 0 || x.HeldUp > r.Ranks[r.Straggler].HeldUp) {
			r.Straggler = rank
		}
	}
	for _, run := range m.runs {
		r.Unmatched += int64(len(run.open))
		for step, waited := range run.waiting {
			r.Waits = append(r.Waits, Wait{step, waited})
		}
	}
	slices.SortFunc(r.Waits, func(x, y Wait) int {
		return cmp.Or(cmp.Compare(y.Waited, x.Waited), cmp.Compare(x.Step, y.Step))
	})
	r.Waits = slices.Clone(r.Waits[:min(len(r.Waits), mostWaits)])
	r.note()
	return &r, nil
}

// Headline names the straggler in a sentence.
func (r *Report) Headline() string {
	if r.Straggler < 0 || r.Straggler >= len(r.Ranks) {
		return "no rank has waited for another one"
	}
	s := r.Ranks[r.Straggler]
	return fmt.Sprintf("the straggler is rank %d: it came last to %d of %d operations, held the others up for %s, and they waited %s for it",
		r.Straggler, s.Last, r.Matched, duration(s.HeldUp), duration(s.WaitedFor))
}
