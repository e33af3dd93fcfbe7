package ranks

import (
	"errors"
	"fmt"
	"time"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// ErrInvalid is the class of errors about profiles that nothing can have written, for errors.Is; it is [device.ErrInvalid].
var ErrInvalid = device.ErrInvalid

const (
	// mostRanks is how many ranks a report can have: their matrix has the square of that.
	mostRanks = 4096
	// most is the largest number of bytes or nanoseconds: sums of some thousand are still right.
	most = 1 << 50
	// mostWaits is how many steps a report lists.
	mostWaits = 20
)

// Merger takes the profiles of all ranks in, in any order. It keeps of each rank what adds up, the waiting in each step, and the operations that not all ranks have yet. Its methods are called by
// one goroutine at a time.
type Merger struct {
	report  *Report
	open    map[operation]*arrivals
	waiting map[stepOf]time.Duration // by those that have been matched
}

// operation is one of all ranks.
type operation struct {
	communicator string
	number       int64
}

// arrivals are the times of an operation, by rank.
type arrivals struct {
	times []time.Duration
	left  int // ranks that are missing
	step  stepOf
}

// stepOf is a step of all ranks. Numbers begin again where a training goes on with other communicators.
type stepOf struct {
	communicator string
	number       int64
}

// Add takes a profile in. One that has no rank, or another number of ranks than those before, or figures that nothing has, is an error that wraps [ErrInvalid], and changes nothing.
func (m *Merger) Add(p trace.StepProfile) error {
	if err := check(&p); err != nil {
		return fmt.Errorf("ranks: step %d: %w: %w", p.Step, ErrInvalid, err)
	}
	if m.report == nil {
		m.report = newReport(p.WorldSize)
		m.open, m.waiting = map[operation]*arrivals{}, map[stepOf]time.Duration{}
	}
	r := m.report
	if p.WorldSize != r.WorldSize {
		return fmt.Errorf("ranks: step %d: %w: the profile is of %d ranks, and those before of %d; put the profiles of one training together", p.Step, ErrInvalid, p.WorldSize, r.WorldSize)
	}
	r.Ranks[p.Rank].add(&p)
	for _, x := range p.Collectives {
		if x.Number == 0 {
			continue
		}
		op := operation{p.Communicator, x.Number}
		a := m.open[op]
		if a == nil {
			a = &arrivals{times: make([]time.Duration, r.WorldSize), left: r.WorldSize, step: stepOf{p.Communicator, p.Step}}
			for i := range a.times {
				a.times[i] = missing
			}
			m.open[op] = a
		}
		if a.times[p.Rank] != missing {
			continue // a file that was read twice
		}
		a.times[p.Rank] = x.Time
		if a.left--; a.left == 0 {
			delete(m.open, op)
			m.match(a)
		}
	}
	return nil
}

const missing = -1

// match adds an operation that all ranks have the time of.
func (m *Merger) match(a *arrivals) {
	r := m.report
	r.Matched++
	last := 0
	for rank, t := range a.times {
		if t < a.times[last] {
			last = rank
		}
	}
	held := time.Duration(missing)
	for rank, t := range a.times {
		wait := t - a.times[last]
		r.Waited[rank][last] += wait
		r.Ranks[rank].Waited += wait
		r.Ranks[last].WaitedFor += wait
		if m.waiting[a.step] += wait; rank != last && (held == missing || wait < held) {
			held = wait
		}
	}
	r.Ranks[last].HeldUp += max(held, 0)
	r.Ranks[last].Last++
}

// check is an error about figures that no program has.
func check(p *trace.StepProfile) error {
	switch {
	case p.WorldSize == 0:
		return errors.New("the profile says no rank; ProfilerConfig.Communicator or trace.Config.WorldSize lets it")
	case p.WorldSize < 0 || p.WorldSize > mostRanks || p.Rank < 0 || p.Rank >= p.WorldSize:
		return fmt.Errorf("rank %d of %d: want 0 to the size less one, of %d at most", p.Rank, p.WorldSize, mostRanks)
	}
	figures := []int64{int64(p.HostTime), int64(p.DeviceTime), p.AllocatedPeak, p.ReservedPeak}
	for _, x := range p.Collectives {
		figures = append(figures, x.Number, x.Bytes, int64(x.Time))
	}
	for _, x := range p.ReplayedCollectives {
		figures = append(figures, x.Count, x.Bytes)
	}
	if p.Peak != nil {
		for _, s := range p.Peak.Categories {
			figures = append(figures, s.Bytes)
		}
	}
	for _, f := range figures {
		if f < 0 || f > most {
			return fmt.Errorf("a figure of %d: want 0 to %d", f, int64(most))
		}
	}
	return nil
}

// add adds a step of the rank's.
func (r *Rank) add(p *trace.StepProfile) {
	r.Steps++
	r.LastStep = p.Step
	if p.Failed {
		r.Failed++
	}
	r.HostTime += p.HostTime
	if p.DeviceTimed {
		r.DeviceTime += p.DeviceTime
	}
	for _, x := range p.Collectives {
		r.Collectives++
		r.CollectiveTime += x.Time
		r.Bytes += x.Bytes
	}
	for _, x := range p.ReplayedCollectives {
		r.Replayed += x.Count
		r.ReplayedBytes += x.Bytes
	}
	r.ReservedPeak = max(r.ReservedPeak, p.ReservedPeak)
	if p.AllocatedPeak > r.AllocatedPeak || r.PeakStep == 0 {
		r.AllocatedPeak, r.PeakStep, r.Categories = p.AllocatedPeak, p.Step, nil
		if p.Peak != nil {
			r.Categories = append([]memcache.Share(nil), p.Peak.Categories...)
		}
	}
}
