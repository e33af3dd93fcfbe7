package recording

import (
	"slices"
	"strings"
)

// Recordings of ours say of each call how it went, so that a program of them needs no guesses; and they may be of several
// goroutines. One after the other their calls are:
//
//	free_completed*                                                        alloc         a hit
//	free_completed* stream_closed* miss (driver calls, flush, refused…)*   alloc or oom  a miss, with the growth lock
//	flush free_completed* (driver calls)*                                  empty_cache
//	(driver calls)* (flush free_completed* (driver calls)*)?               trim_to
//	free_requested, with its free_completed if that follows at once
//
// Whatever else stands between two calls was done by another goroutine meanwhile. Such calls have no order in which they could
// be made one after the other and have the same outcome: a request that found nothing free may get new memory while blocks
// were freed that would have served it.

// jumble notes why the calls can't be made again; the first reason stands.
func (b *builder) jumble(reason string) {
	if b.p.Jumbled == "" {
		b.p.Jumbled = reason
	}
}

// ownReason is why a recording as a whole can't be had again.
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

// reuses reports whether options let streams wait for each other's memory: an event that such a wait took is none that was seen complete, and
// a recording does not tell of it.
func reuses(options string) bool {
	return strings.Contains(options, "reuse_across_streams:") && !strings.Contains(options, "reuse_across_streams:never")
}

const overlap = "calls of several goroutines overlap, or a reclaimer freed memory inside a request"

// own takes in entry i of a recording of ours, before what is done for all.
func (b *builder) own(i int) {
	e := &b.p.Entries[i]
	switch e.Action {
	case Alloc:
		if e.Flags&Grew == 0 {
			b.onlyCompletions(i, overlap)
		}
		if b.closed[e.Stream] {
			b.jumble(overlap) // the stream was closed while the request was under way
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

// finish takes in what happened after the last call: frees that completed, as Close of a cache waits for them, or the beginning
// of a call that was under way.
func (b *builder) finish() {
	if n := len(b.p.Entries); !b.p.Unfinished {
		b.onlyCompletions(n, "it ended while a call was under way")
	}
	b.others(len(b.p.Entries))
}

// onlyCompletions requires of the entries up to entry i that the poll of a hit can have left them.
func (b *builder) onlyCompletions(i int, reason string) {
	for _, e := range b.p.Entries[b.inside:i] {
		if e.Action != FreeCompleted && e.Action != Overlap {
			b.jumble(reason)
		}
	}
}

// others makes a step of what happened up to entry i and is of no call that can be told.
func (b *builder) others(i int) {
	if b.inside < i {
		b.p.Steps = append(b.p.Steps, Step{Kind: StepOther, Block: -1, Entry: int32(b.inside), From: int32(b.inside), To: int32(i), Completed: -1})
	}
	b.inside = i
}
