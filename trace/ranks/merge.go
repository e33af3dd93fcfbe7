package ranks

import (
	"fmt"
	"unsafe"

	"github.com/cistern-ml/cistern/internal/budget"
	"github.com/cistern-ml/cistern/trace"
)

// mostRanks is the largest number of ranks of a report, which lists all of them.
const mostRanks = 4096

// Merger merges the profiles of all ranks, in any order. It keeps sums for each rank, the waits in
// each step, and the operations that some ranks have not reported yet. Its methods must not be
// called concurrently.
type Merger struct {
	report *Report
	runs   map[string]*run // by communicator
	budget *budget.Budget  // nil: no bounds

	traceURL string // Options.TraceURL
}

// Add merges a profile. A profile without a rank, of another number of ranks than the earlier ones,
// or with impossible figures is an error that wraps [ErrInvalid], and changes nothing.
func (m *Merger) Add(p trace.StepProfile) error {
	if err := m.add(&p); err != nil {
		return fmt.Errorf("ranks: step %d: %w", p.Step, err)
	}
	return nil
}

func (m *Merger) add(p *trace.StepProfile) error {
	if err := check(p); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalid, err)
	}
	if m.report == nil {
		// Merger.Report copies the ranks.
		if err := m.budget.Memory(2 * int64(p.WorldSize) * int64(unsafe.Sizeof(Rank{}))); err != nil {
			return err
		}
		m.report, m.runs = newReport(p.WorldSize), map[string]*run{}
	}
	if size := m.report.WorldSize; p.WorldSize != size {
		return fmt.Errorf("%w: the profile is of %d ranks, and earlier ones are of %d; merge the profiles of one training",
			ErrInvalid, p.WorldSize, size)
	}
	if err := m.budget.Memory(m.report.Ranks[p.Rank].add(p)); err != nil {
		return err
	}
	if len(p.Collectives) == 0 {
		return nil
	}
	run, err := m.runOf(p.Communicator)
	if err != nil {
		return err
	}
	if err := m.trace(run, p); err != nil {
		return err
	}
	for i := range p.Collectives {
		if err := m.arrive(run, p, &p.Collectives[i]); err != nil {
			return err
		}
	}
	return nil
}
