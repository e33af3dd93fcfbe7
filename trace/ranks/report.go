package ranks

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/memcache"
)

// Report is what the steps of all ranks did.
type Report struct {
	WorldSize int    `json:"world_size"`
	Ranks     []Rank `json:"ranks"`
	// Matched are the operations that all ranks have the time of; Unmatched those that some lack.
	Matched   int64 `json:"matched"`
	Unmatched int64 `json:"unmatched"`
	// Waited is how long a rank, the first index, has waited for another one that came last.
	Waited [][]time.Duration `json:"waited_ns"`
	// Straggler is the rank that held up the others for the longest time; -1: no operation tells.
	Straggler int `json:"straggler"`
	// Waits are the steps in which ranks waited the longest, all together.
	Waits []Wait   `json:"waits"`
	Notes []string `json:"notes"` // about what is missing
}

// Rank is one of the ranks. Times are those of all of its steps together.
type Rank struct {
	Steps    int64 `json:"steps"`
	Failed   int64 `json:"failed"` // of these
	LastStep int64 `json:"last_step"`

	HostTime   time.Duration `json:"host_time_ns"`
	DeviceTime time.Duration `json:"device_time_ns"` // of the steps that have one

	Collectives    int64         `json:"collectives"`
	Bytes          int64         `json:"bytes"`          // of them
	Replayed       int64         `json:"replayed"`       // operations more, in graphs that were replayed, which have no times
	ReplayedBytes  int64         `json:"replayed_bytes"` // of them
	CollectiveTime time.Duration `json:"collective_time_ns"`
	Waited         time.Duration `json:"waited_ns"`     // for ranks that came last
	WaitedFor      time.Duration `json:"waited_for_ns"` // by all others together, in operations to which this rank came last
	Last           int64         `json:"last"`          // how many these are
	HeldUp         time.Duration `json:"held_up_ns"`    // how much later it came to them than the rank before it

	AllocatedPeak int64            `json:"allocated_peak"`
	PeakStep      int64            `json:"peak_step"`
	ReservedPeak  int64            `json:"reserved_peak"`
	Categories    []memcache.Share `json:"categories"` // at the allocated peak, where its profile says so: see trace.ProfilerConfig.Holders
}

// Wait is a step in which ranks waited.
type Wait struct {
	Step   int64         `json:"step"`
	Waited time.Duration `json:"waited_ns"` // by all ranks together
}

func newReport(size int) *Report {
	r := &Report{WorldSize: size, Ranks: make([]Rank, size), Waited: make([][]time.Duration, size), Straggler: -1}
	for i := range r.Waited {
		r.Waited[i] = make([]time.Duration, size)
	}
	return r
}

// Report is what was added up to now; the Merger goes on with its own. Without any profile it is an error that wraps [ErrInvalid].
func (m *Merger) Report() (*Report, error) {
	if m.report == nil {
		return nil, fmt.Errorf("ranks: %w: there is no profile of a step", ErrInvalid)
	}
	r := *m.report
	r.Ranks = slices.Clone(r.Ranks)
	r.Waited = make([][]time.Duration, r.WorldSize)
	for i := range r.Waited {
		r.Waited[i] = slices.Clone(m.report.Waited[i])
	}
	r.Unmatched = int64(len(m.open))
	for rank := range r.Ranks {
		if best := r.Straggler; r.Ranks[rank].HeldUp > 0 && (best < 0 || r.Ranks[rank].HeldUp > r.Ranks[best].HeldUp) {
			r.Straggler = rank
		}
	}
	for s, waited := range m.waiting {
		if waited > 0 {
			r.Waits = append(r.Waits, Wait{Step: s.number, Waited: waited})
		}
	}
	slices.SortFunc(r.Waits, func(x, y Wait) int {
		return cmp.Or(cmp.Compare(y.Waited, x.Waited), cmp.Compare(x.Step, y.Step))
	})
	r.Waits = r.Waits[:min(len(r.Waits), mostWaits)]
	r.note()
	return &r, nil
}

// note says what is missing.
func (r *Report) note() {
	r.Notes = slices.Clone(r.Notes)
	var last, replayed, bytes int64
	for _, rank := range r.Ranks {
		last = max(last, rank.LastStep)
		replayed += rank.Replayed
		bytes += rank.ReplayedBytes
	}
	for i, rank := range r.Ranks {
		switch {
		case rank.Steps == 0:
			r.Notes = append(r.Notes, fmt.Sprintf("there are no profiles of rank %d: no operation is matched without them", i))
		case rank.LastStep < last:
			r.Notes = append(r.Notes, fmt.Sprintf("the profiles of rank %d end with step %d, and others' with step %d", i, rank.LastStep, last))
		}
		if rank.Failed > 0 {
			r.Notes = append(r.Notes, fmt.Sprintf("%d steps of rank %d failed", rank.Failed, i))
		}
	}
	if r.Unmatched > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d collective operations are not of all ranks, and tell nobody's waiting", r.Unmatched))
	}
	switch {
	case replayed > 0:
		r.Notes = append(r.Notes, fmt.Sprintf("%s collective operations of %s were in graphs that were replayed: they have no times, and tell nobody's waiting", humanize.Comma(replayed), size(bytes)))
	case r.Matched+r.Unmatched == 0:
		r.Notes = append(r.Notes, "the profiles have no collective operations: a Profiler without a Communicator has none")
	}
}

// Headline says in a sentence who is the straggler.
func (r *Report) Headline() string {
	if r.Straggler < 0 {
		return "no rank has waited for another one"
	}
	s := r.Ranks[r.Straggler]
	return fmt.Sprintf("the straggler is rank %d: it came last to %d of %d operations, held the others up for %s, and they waited %s for it",
		r.Straggler, s.Last, r.Matched, duration(s.HeldUp), duration(s.WaitedFor))
}
