package trace

import "sync/atomic"

// Counts tell how complete a trace is. All are numbers of spans since New.
//
// What a processor or an exporter lost is Ended minus the spans with the scope [ScopeName] that reached the
// backend, counted by an exporter that wraps the program's own; the example shows it.
type Counts struct {
	Started    int64 `json:"started"`     // begun and recording
	Ended      int64 `json:"ended"`       // of these, ended: a span counts before a processor gets it
	SampledOut int64 `json:"sampled_out"` // begun, but the SDK's sampler said no
	// Skipped are the allocations and frees inside recorded steps that got no span because the step's
	// detail was below All. Steps that overlap count each other's.
	Skipped int64 `json:"skipped"`
}

type counts struct {
	started, ended, sampledOut, skipped atomic.Int64

	tied atomic.Int64 // frees whose span does not come from the detail of a step
}

// Counts returns the counts up to now. Spans of copies and steps end when the device is done with them.
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
