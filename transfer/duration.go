package transfer

import "time"

// DurationStat is a statistic of the durations of one kind of call.
type DurationStat struct {
	// Count is the number of calls, Total the sum of their durations.
	Count int64
	Total time.Duration
	// Min and Max are 0 without calls.
	Min, Max time.Duration
}

// Average returns Total / Count, or 0 without calls.
func (d DurationStat) Average() time.Duration {
	if d.Count == 0 {
		return 0
	}
	return d.Total / time.Duration(d.Count)
}

// add counts a call. The pool is locked.
func (d *DurationStat) add(took time.Duration) {
	if d.Count == 0 || took < d.Min {
		d.Min = took
	}
	d.Max = max(d.Max, took)
	d.Count++
	d.Total += took
}
