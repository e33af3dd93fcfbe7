package ranks

import (
	"cmp"
	"slices"
	"time"

	"github.com/cistern-ml/cistern/trace"
)

// run is the reports of the ranks of one communicator. A resumed training has another communicator,
// whose operations and steps are numbered from the beginning again.
type run struct {
	open  map[int64]*arrivals // by number: the operations that some ranks have not reported
	slots int                 // the most open operations so far
	steps map[int64]*step
}

// arrivals are the times of an open operation, sorted by rank.
type arrivals struct {
	step  int64
	ranks []arrival
}

type arrival struct {
	rank int
	time time.Duration
}

// runOf returns the run of a communicator. Operations are then looked up without its name, which
// may be long.
func (m *Merger) runOf(communicator string) (*run, error) {
	r := m.runs[communicator]
	if r == nil {
		if err := m.budget.Memory(communicatorCost + int64(len(communicator))); err != nil {
			return nil, err
		}
		if err := m.budget.Work(communicatorWork); err != nil {
			return nil, err
		}
		r = &run{open: map[int64]*arrivals{}, steps: map[int64]*step{}}
		m.runs[communicator] = r
	}
	return r, nil
}

// arrive records the time that a rank reports of an operation. An operation that a rank reports
// twice, such as that of a file that is read twice, is counted once as long as it is open.
func (m *Merger) arrive(run *run, p *trace.StepProfile, x *trace.StepCollective) error {
	if x.Number == 0 {
		return nil // sends and receives
	}
	a := run.open[x.Number]
	if a == nil {
		a = &arrivals{step: p.Step}
		run.open[x.Number] = a
		cost := int64(operationCost)
		if len(run.open) > run.slots {
			run.slots++
			cost += slotCost
		}
		if err := m.budget.Memory(cost); err != nil {
			return err
		}
	}
	i, found := slices.BinarySearchFunc(a.ranks, p.Rank, func(x arrival, rank int) int { return cmp.Compare(x.rank, rank) })
	if found {
		return nil
	}
	if err := m.budget.Memory(arrivalCost); err != nil {
		return err
	}
	if err := m.budget.Work(int64(len(a.ranks)-i) / 16); err != nil { // 16 arrivals move in 20 ns
		return err
	}
	a.ranks = slices.Insert(a.ranks, i, arrival{p.Rank, x.Time})
	if len(a.ranks) < m.report.WorldSize {
		return nil
	}
	delete(run.open, x.Number)
	if err := m.budget.Memory(-operationCost - arrivalCost*int64(len(a.ranks))); err != nil {
		return err
	}
	return m.match(run, a)
}

// match adds an operation that all ranks have reported.
func (m *Merger) match(run *run, a *arrivals) error {
	r := m.report
	last := slices.MinFunc(a.ranks, func(x, y arrival) int { return cmp.Compare(x.time, y.time) })
	r.Matched++
	r.Ranks[last.rank].Last++
	column := r.Waited[last.rank]
	if column == nil {
		// Twice, because Merger.Report copies it.
		if err := m.budget.Memory(2 * 8 * int64(r.WorldSize)); err != nil {
			return err
		}
		column = make([]time.Duration, r.WorldSize)
		r.Waited[last.rank] = column
	}
	var waited time.Duration
	held := time.Duration(most)
	for rank, x := range a.ranks {
		wait := x.time - last.time
		column[rank] += wait
		r.Ranks[rank].Waited += wait
		waited += wait
		if rank != last.rank {
			held = min(held, wait)
		}
	}
	if waited == 0 {
		return nil
	}
	r.Ranks[last.rank].WaitedFor += waited
	r.Ranks[last.rank].HeldUp += held
	s, err := m.stepOf(run, a.step)
	if err != nil {
		return err
	}
	s.waited += waited
	for i := range s.late {
		if s.late[i].rank == last.rank {
			s.late[i].time += held
			return nil
		}
	}
	s.late = append(s.late, arrival{last.rank, held})
	return m.budget.Memory(arrivalCost)
}
