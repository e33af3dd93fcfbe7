package ranks

import (
	"fmt"

	"github.com/dustin/go-humanize"
)

// note adds notes about missing data.
func (r *Report) note() {
	var last, replayed, bytes int64
	for _, x := range r.Ranks {
		last = max(last, x.LastStep)
		replayed += x.Replayed
		bytes += x.ReplayedBytes
	}
	r.noteRanks(func(ranks string, x Rank) string {
		switch {
		case x.Steps == 0:
			return fmt.Sprintf("there are no profiles of %s: no operation is matched without them", ranks)
		case x.LastStep < last:
			return fmt.Sprintf("the profiles of %s end at step %d, those of other ranks at step %d", ranks, x.LastStep, last)
		}
		return ""
	})
	r.noteRanks(func(ranks string, x Rank) string {
		if x.Failed == 0 {
			return ""
		}
		return fmt.Sprintf("%s failed in %d of %d steps", ranks, x.Failed, x.Steps)
	})
	if r.Unmatched > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%d collective operations are missing on some ranks, so they are not counted as waiting", r.Unmatched))
	}
	switch {
	case replayed > 0:
		r.Notes = append(r.Notes, fmt.Sprintf("%s collective operations of %s were in replayed graphs, which have no times, so they are not counted as waiting",
			humanize.Comma(replayed), size(bytes)))
	case r.Matched+r.Unmatched == 0:
		r.Notes = append(r.Notes, "the profiles have no collective operations: a Profiler without a Communicator records none")
	}
}

// noteRanks adds one note for each run of consecutive ranks with the same text, unless it is empty.
func (r *Report) noteRanks(text func(ranks string, x Rank) string) {
	for from := 0; from < len(r.Ranks); {
		x, to := r.Ranks[from], from+1
		for to < len(r.Ranks) && text("", r.Ranks[to]) == text("", x) {
			to++
		}
		names := fmt.Sprintf("rank %d", from)
		if to-from > 1 {
			names = fmt.Sprintf("ranks %d to %d", from, to-1)
		}
		if note := text(names, x); note != "" {
			r.Notes = append(r.Notes, note)
		}
		from = to
	}
}
