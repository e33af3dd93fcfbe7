package trace

import "sync/atomic"

// Counts shows how complete a trace is. All are numbers of spans since New.
//
// The spans that a processor or an exporter lost are Ended minus the spans with the scope
// [ScopeName] that reached the backend. An exporter that wraps the program's own can count these,
// as in the example.
type Counts struct {
	Started    int64 `json:"started"`     // begun and recording
	Ended      int64 `json:"ended"`       // of these; counted before a processor gets it
	SampledOut int64 `json:"sampled_out"` // begun, but not sampled by the SDK
	// Skipped counts the allocations and frees inside recorded steps that got no span because the
	// step's detail was below All. Overlapping steps count each other's.
	Skipped int64 `json:"skipped"`
}

type counts struct {
	started, ended, sampledOut, skipped atomic.Int64

	tied atomic.Int64 // spans of frees that no step's detail caused
}

// Counts returns the present counts. Spans of copies and steps end when the device has finished
// them.
func (t *Tracer) Counts() Counts {
	if t.off() {
		return Counts{}
	}
	return Counts{
		Ended:      t.counts.ended.Load(), // first, so that it is never more than Started
		Started:    t.counts.started.Load(),
		SampledOut: t.counts.sampledOut.Load(),
		Skipped:    t.counts.skipped.Load(),
	}
}
