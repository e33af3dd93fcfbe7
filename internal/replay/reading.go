package replay

import (
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
)

// reading is one explanation of a call's entries. A recording does not contain whether a completed
// free was seen by the poll at a call's start or by a flush later in it, whether the flush belonged
// to the call or to an empty_cache before it, and which requests the driver refused.
type reading struct {
	// a free that looks complete at once was pending: the next call's flush waited for it
	late bool
	// an empty_cache came before the call, and did everything except its growth
	empty bool
	// the driver had no memory beyond that in the entries
	full bool
	// the completions at the call's start were waited for; if only some were, the result is the
	// same
	waited bool
}

// waits reports whether the call's flush waited for frees that a poll could have completed.
func (h reading) waits() bool { return h.late || h.waited }

// shape describes the entries inside a call.
type shape struct {
	lead     int // number of completions before the first driver call
	releases bool
	grows    bool // the last driver call allocates
	// index after the last release, where an empty_cache before the call ends
	cut int
}

// shapeOf returns the shape of the entries inside a call.
func shapeOf(inside []recording.Entry) (s shape) {
	for i, e := range inside {
		switch {
		case e.Action == recording.FreeCompleted:
			if s.lead == i {
				s.lead++
			}
		case e.Action.Releases():
			s.releases = true
			s.cut = i + 1
		}
		s.grows = e.Action == recording.SegmentAlloc || e.Action == recording.SegmentMap
	}
	return s
}

// assumptions are properties of a whole recording.
type assumptions struct {
	limited bool // there is a memory limit
	// segments are expandable
	expandable bool
	calls      bool // calls of empty_cache and record_stream are recorded
	emptied    int  // number of calls of empty_cache; -1: unknown
	// allocations were retried after a flush, or it is unknown
	retried bool
}

// assume derives the assumptions from the statistics at the end: each retry flushed once, and each
// other flush was an empty_cache.
func assume(p *recording.Program, limited, expandable bool) assumptions {
	a := assumptions{limited: limited, expandable: expandable, calls: p.Calls, emptied: -1, retried: true}
	retries, ok := p.Stats["num_alloc_retries"]
	syncs, ok2 := p.Stats["num_sync_all_streams"]
	if ok && ok2 && syncs >= retries && p.Start == nil {
		a.emptied, a.retried = int(syncs-retries), retries > 0
	}
	if a.calls {
		a.emptied = 0
	}
	return a
}

// retriedSurely reports whether the statistics show retries.
func (a assumptions) retriedSurely() bool { return a.emptied >= 0 && a.retried }

// readings returns the readings of a step, likely ones first, or nil if the step is unambiguous or
// was read together with the step before it.
func (a assumptions) readings(p *recording.Program, i int) []reading {
	s := &p.Steps[i]
	if s.Kind == recording.StepFree {
		if !a.paired(p, i) {
			return nil
		}
		return a.callReadings(p, i+1, []reading{{late: true}, {late: true, full: true}})
	}
	if s.Kind == recording.StepEmpty || i > 0 && a.paired(p, i-1) {
		return nil
	}
	return a.callReadings(p, i, nil)
}

// paired reports whether step i is a free that looks complete at once, before a call that may have
// flushed and so completed it.
func (a assumptions) paired(p *recording.Program, i int) bool {
	s := &p.Steps[i]
	return !a.calls && s.Kind == recording.StepFree && !s.Later && i+1 < len(p.Steps) && a.flushes(p, i+1)
}

// flushes reports whether step i is an allocation that may have flushed: it failed, released
// memory, or grew an expandable segment by memory that the flush completed.
func (a assumptions) flushes(p *recording.Program, i int) bool {
	s := &p.Steps[i]
	if s.Kind != recording.StepAlloc {
		return s.Kind == recording.StepOOM
	}
	return a.expandable && a.retried || s.From < s.To && shapeOf(p.Inside(s)).releases
}

// callReadings returns the readings of an allocation; late are those about the free before it.
func (a assumptions) callReadings(p *recording.Program, i int, late []reading) []reading {
	if !a.flushes(p, i) {
		return nil
	}
	s := &p.Steps[i]
	sh := shapeOf(p.Inside(s))
	if s.Kind == recording.StepAlloc && !sh.releases {
		return a.unreleased(sh, len(late) > 0)
	}
	own := append(a.own(sh), late...)
	if !sh.releases || a.emptied == 0 {
		return own
	}
	before := []reading{{empty: true}}
	if s.Kind == recording.StepOOM {
		before = append(before, reading{empty: true, full: true})
	}
	switch {
	case a.emptied > 0 && !a.retried, !a.limited:
		return append(before, own...)
	// only blocks that the flush completed can have served it
	case s.Kind == recording.StepAlloc && !sh.grows:
		return append(before, own...)
	}
	return append(own, before...)
}

// unreleased returns the readings of an allocation that released nothing. It may still have flushed
// if a free completed in it.
func (a assumptions) unreleased(sh shape, late bool) []reading {
	list := []reading{{}}
	if sh.lead > 0 {
		list = append(list, reading{waited: true, full: !a.limited})
	}
	if late {
		list = append(list, reading{late: true, full: !a.limited})
	}
	if len(list) == 1 {
		return nil
	}
	return list
}

// own returns the readings without an empty_cache.
func (a assumptions) own(sh shape) []reading {
	list := []reading{{}}
	if sh.lead > 0 {
		list = append(list, reading{waited: true})
	}
	full := slices.Clone(list)
	for i := range full {
		full[i].full = true
	}
	if !a.limited {
		return full // nothing else makes an attempt fail
	}
	return append(list, full...)
}

// choice is an ambiguous step, with the reading that is tried.
type choice struct {
	step     int
	readings []reading
	pick     int
	// number of the cache's retries in it
	retries int64
}

// reading returns the current reading.
func (c *choice) reading() reading { return c.readings[c.pick] }
