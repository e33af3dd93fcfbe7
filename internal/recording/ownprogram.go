package recording

import (
	"slices"
	"strings"
)

// Our own recordings contain the outcome of each call, so their programs need no guesses. They may
// be of several goroutines. Calls that do not overlap leave these entries:
//
//	free_completed*                                                        alloc         a hit
//	free_completed* stream_closed* miss (driver calls, flush, refused…)*   alloc or oom  a miss
//	flush free_completed* (driver calls)*                                  empty_cache
//	(driver calls)* (flush free_completed* (driver calls)*)?               trim_to
//	free_requested, with its free_completed if that follows at once
//
// From its miss on, a request holds the growth lock. Any other entry between two calls is of
// another goroutine at the same time. Such calls have no sequential order with the same outcome: a
// request that found nothing free may get new memory while blocks were freed that would have served
// it.

// jumble stores the reason why the calls cannot be repeated. The first reason stays.
func (b *builder) jumble(reason string) {
	if b.p.Jumbled == "" {
		b.p.Jumbled = reason
	}
}

// ownReason returns the reason why a recording as a whole cannot be repeated.
func ownReason(p *Program) string {
	switch {
	case p.Initial > 0:
		return "it begins with memory in use"
	case p.PrivatePools:
		return "some of it is of private pools"
	case reuses(p.Conf), slices.ContainsFunc(p.Options, reuses):
		return "requests were served from memory that other streams still used"
	}
	return ""
}

// reuses reports whether options let streams wait for each other's memory. An event that such a
// wait used was not seen complete, and the recording does not contain the wait.
func reuses(options string) bool {
	return strings.Contains(options, "reuse_across_streams:") && !strings.Contains(options, "reuse_across_streams:never")
}

const overlap = "calls of several goroutines overlap, or a reclaimer freed memory inside a request"

// own handles entry i of a recording of ours, before the handling that all recordings share.
func (b *builder) own(i int) {
	e := &b.p.Entries[i]
	switch e.Action {
	case Alloc:
		if e.Flags&Grew == 0 {
			b.onlyCompletions(i, overlap)
		}
		if b.closed[e.Stream] {
			// the stream was closed during the request
			b.jumble(overlap)
		}
	case FreeRequested:
		if b.inside < i {
			b.jumble(overlap)
			b.others(i)
		}
	case EmptyCache, Trim:
		b.p.Steps = append(b.p.Steps, Step{Kind: StepEmpty, Block: -1, Entry: int32(b.inside), From: int32(b.inside), To: int32(i), Completed: -1})
		b.inside = i + 1
	case ResetPeaks, ResetTotals, SetLimit, SetOptions:
		if b.inside < i {
			b.jumble(overlap)
			b.others(i)
		}
		kind := StepReset
		switch e.Action {
		case SetLimit:
			kind = StepLimit
		case SetOptions:
			kind = StepOptions
		}
		b.p.Steps = append(b.p.Steps, Step{Kind: kind, Block: -1, Entry: int32(i), From: int32(i), To: int32(i), Completed: -1})
		b.inside = i + 1
	case Overlap:
		if b.p.Overlap < 0 {
			b.p.Overlap = i
		}
		if b.inside == i {
			b.inside = i + 1
		}
	case StreamClosed:
		b.closed[e.Stream] = true
	case Failed:
		b.jumble("a request failed for another reason than memory, or an empty_cache or trim_to did")
	}
}

// finish handles the entries after the last call: completed frees, for which Close of a cache
// waits, or the beginning of an unfinished call.
func (b *builder) finish() {
	if n := len(b.p.Entries); !b.p.Unfinished {
		b.onlyCompletions(n, "it ended during a call")
	}
	b.others(len(b.p.Entries))
}

// onlyCompletions jumbles the program with reason, unless the entries up to entry i can be those of
// a hit's poll.
func (b *builder) onlyCompletions(i int, reason string) {
	for _, e := range b.p.Entries[b.inside:i] {
		if e.Action != FreeCompleted && e.Action != Overlap {
			b.jumble(reason)
		}
	}
}

// others makes a step of the entries up to entry i, which belong to no known call.
func (b *builder) others(i int) {
	if b.inside < i {
		b.p.Steps = append(b.p.Steps, Step{Kind: StepOther, Block: -1, Entry: int32(b.inside), From: int32(b.inside), To: int32(i), Completed: -1})
	}
	b.inside = i
}
