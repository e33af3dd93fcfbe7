package ranks

import (
	"time"

	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/trace"
)

// step is the reports of a run's ranks of one step.
type step struct {
	number int64
	waited time.Duration // by all ranks together
	// late has the ranks that came last in operations, with how long they held up the others there.
	late []arrival

	trace     oteltrace.TraceID // of the lowest rank that has one
	traceRank int
}

// stepOf returns a step of a run.
func (m *Merger) stepOf(run *run, number int64) (*step, error) {
	s := run.steps[number]
	if s == nil {
		if err := m.budget.Memory(stepCost); err != nil {
			return nil, err
		}
		s = &step{number: number}
		run.steps[number] = s
	}
	return s, nil
}

// trace records the trace of a rank's step.
func (m *Merger) trace(run *run, p *trace.StepProfile) error {
	if p.TraceID == "" {
		return nil
	}
	s, err := m.stepOf(run, p.Step)
	if err != nil {
		return err
	}
	if !s.trace.IsValid() || p.Rank < s.traceRank {
		s.trace, _ = oteltrace.TraceIDFromHex(p.TraceID) // check has accepted it
		s.traceRank = p.Rank
	}
	return nil
}

// last returns the rank that came last in the step, and how long it held up the others. If two
// ranks held them up for as long, the step has none: its rank is -1.
func (s *step) last() arrival {
	most := arrival{rank: -1}
	for _, x := range s.late {
		switch {
		case x.time > most.time:
			most = x
		case x.time == most.time:
			most.rank = -1
		}
	}
	if most.rank < 0 {
		most.time = 0
	}
	return most
}

// wait returns the step for a report.
func (s *step) wait(traceURL string) Wait {
	last := s.last()
	w := Wait{Step: s.number, Waited: s.waited, Last: last.rank, HeldUp: last.time}
	if s.trace.IsValid() {
		w.TraceID = s.trace.String()
		w.TraceURL = traceAddress(traceURL, w.TraceID)
	}
	return w
}
