package replay

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
)

// Estimate is the cost of a program under a configuration.
type Estimate struct {
	Allocs int // allocations, failed ones included

	PeakAllocated, PeakReserved int64 // bytes
	Retries, OOMs, DriverCalls  int64
	// Elapsed is the time of the replay, for Calls calls.
	Elapsed time.Duration
	Calls   int
	// Notes describe the assumptions behind the figures.
	Notes []string
}

// Ratio returns the peak of reserved memory divided by that of allocated memory; 0 if nothing is
// allocated.
func (e *Estimate) Ratio() float64 {
	if e.PeakAllocated == 0 {
		return 0
	}
	return float64(e.PeakReserved) / float64(e.PeakAllocated)
}

// NsPerOp returns the mean time of a call in nanoseconds, the null device's part included.
func (e *Estimate) NsPerOp() float64 { return nsPerOp(e.Elapsed, e.Calls) }

// nsPerOp returns the mean time of calls that took d in total.
func nsPerOp(d time.Duration, calls int) float64 {
	if calls == 0 {
		return 0
	}
	return float64(d.Nanoseconds()) / float64(calls)
}

// sets is the usual number of option sets; together they may do as much work as one verification.
const sets = 8

// Scenario is a program with the facts that its recording omits.
type Scenario struct {
	p        *recording.Program
	readings map[int]reading // of the ambiguous steps
	limit    int64
	notes    []string
}

// NewScenario infers from a verification the facts that the recording omits.
func NewScenario(p *recording.Program) (*Scenario, error) {
	s := &Scenario{p: p, readings: make(map[int]reading), limit: p.Limit, notes: readingNotes(p)}
	if p.Own { // its recording omits nothing
		if slices.ContainsFunc(p.Entries, func(e recording.Entry) bool { return e.Action == recording.Alloc && e.Flags&recording.Private != 0 }) {
			s.notes = append(s.notes, "requests of private pools are replayed in the default pool")
		}
		return s, nil
	}
	best, err := verify(p)
	if err != nil {
		return nil, err
	}
	s.limit, s.notes = best.config.MemoryLimit, best.notes()
	if best.best.mismatches() > 0 {
		s.notes = append(s.notes, fmt.Sprintf("the recording does not verify: the first %d of %d entries agree", min(best.best.departed, len(p.Entries)), len(p.Entries)))
	}
	for _, c := range best.best.choices {
		s.readings[c.step] = c.reading()
		if p.Steps[c.step].Kind == recording.StepFree {
			// it was read together with the call after it
			s.readings[c.step+1] = c.reading()
		}
	}
	return s, nil
}

// Estimate replays the program under a configuration. If that is Exact, it predicts PyTorch's
// allocator. The recorded memory limit applies, with the program's changes, unless the
// configuration has one. The program's changes of options apply if the configuration is the
// recorded one. Segments and reservations get the recorded addresses of those of their size. An
// allocation that failed in the recording is tried, and freed at once if it succeeds. An allocation
// that fails only now is missing from then on.
func (s *Scenario) Estimate(config memcache.Config) (*Estimate, error) {
	recorded := config.MemoryLimit == 0 && config.PerProcessMemoryFraction == 0
	unlimited := config
	unlimited.PerProcessMemoryFraction, unlimited.MemoryLimit = 0, 0
	own, err := Config(s.p)
	if err != nil {
		return nil, err
	}
	other := unlimited.Options() != own.Options() // from the options at the program's start
	if recorded {
		config.MemoryLimit = s.limit
	}
	begin := (*machine).place
	if !other {
		begin = func(m *machine) error { return m.restore(config) }
	}
	m, err := newMachine(s.p, config, s.p.Budget.Part(sets), false, begin)
	if err != nil {
		return nil, err
	}
	defer m.close()
	m.places = places(s.p)
	skip := func(step *recording.Step) bool { // calls that the configuration overrides
		return step.Kind == recording.StepLimit && !recorded || step.Kind == recording.StepOptions && other
	}
	if other && warms(s.p) {
		if err := s.warm(m, skip); err != nil {
			return nil, err
		}
	}
	e := &Estimate{Calls: len(s.p.Steps), Notes: s.notesFor(other)}
	start := time.Now()
	for i := range s.p.Steps {
		if skip(&s.p.Steps[i]) {
			continue
		}
		if err := s.step(m, e, i); err != nil {
			return nil, fmt.Errorf("%s: entry %d: %w", s.p.Name, s.p.Steps[i].Entry, err)
		}
	}
	if m.err != nil {
		return nil, fmt.Errorf("%s: %w", s.p.Name, m.err)
	}
	e.Elapsed = time.Since(start)
	stats := m.cache.Stats()
	e.PeakAllocated, e.PeakReserved = stats.AllocatedBytes.All.Peak, stats.ReservedBytes.All.Peak
	e.Retries, e.OOMs, e.DriverCalls = stats.NumAllocRetries, stats.NumOOMs, stats.NumDeviceAlloc+stats.NumDeviceFree
	return e, nil
}

// notesFor returns the assumptions of an estimate. other is true if its options are not those of
// the recording.
func (s *Scenario) notesFor(other bool) []string {
	notes := slices.Clone(s.notes)
	switch {
	case !other || s.p.Start == nil:
	case warms(s.p):
		notes = append(notes, "free memory at the start is unknown under other options: estimated by running the recorded calls once before")
	default:
		notes = append(notes, "free memory at the start is unknown under other options: assumed to be none")
	}
	return notes
}

// places returns the addresses of segments and reservations, in order.
func places(p *recording.Program) map[place][]device.Ptr {
	list := make(map[place][]device.Ptr)
	for _, e := range p.Entries {
		if e.Action == recording.SegmentAlloc || e.Action == recording.Reserve && e.Addr != 0 {
			at := place{e.Action, e.Size}
			list[at] = append(list[at], e.Addr)
		}
	}
	return list
}

// step makes the call of step i.
func (s *Scenario) step(m *machine, e *Estimate, i int) error {
	step := &s.p.Steps[i]
	how := s.readings[i]
	if m.cost.step(); m.err != nil {
		return m.err
	}
	m.begin(nil, false)
	switch step.Kind {
	case recording.StepFree:
		return m.release(step, step.Later || how.late)
	case recording.StepEmpty:
		if inside := s.p.Inside(step); s.p.Own && s.p.Entries[step.To].Flags&recording.Private != 0 {
			// it waited, and returned a private pool's memory, which is the default pool's here
			m.completeAll(inside)
			return nil
		}
		return m.empty(step, s.p.Inside(step))
	case recording.StepCall:
		return m.call(step)
	case recording.StepOther:
		m.completeAll(s.p.Inside(step))
		return nil
	case recording.StepLimit:
		return m.cache.SetMemoryLimit(s.p.Entries[step.Entry].Size)
	case recording.StepOptions:
		return m.setOptions(&s.p.Entries[step.Entry])
	case recording.StepReset:
		return nil // the wanted peak is that of the whole program
	}
	inside := s.p.Inside(step)
	if how.empty {
		if err := m.pools.emptyCache(0); err != nil {
			return err
		}
	} else if !how.waits() {
		m.completeAll(inside[:shapeOf(inside).lead])
	}
	m.closeStreams(i, inside)
	m.pools.release(step.Pool, inside)
	e.Allocs++
	b, err := m.allocate(step)
	m.completeAll(inside) // also frees that nothing waited for here
	if how.late {
		m.complete(s.p.Steps[i-1].Block)
	}
	switch {
	case errors.Is(err, memcache.ErrOutOfMemory):
		return nil
	case err != nil:
		return err
	case step.Kind == recording.StepOOM:
		return b.Free()
	}
	return nil
}

// completeAll completes the frees whose completions are among entries.
func (m *machine) completeAll(entries []recording.Entry) {
	for _, e := range entries {
		if e.Action == recording.FreeCompleted {
			m.complete(e.Block)
		}
	}
}
