package replay

import (
	"slices"

	"github.com/cistern-ml/cistern/internal/recording"
)

// reading is one way in which a call can have gone that left its entries. A recording does not say whether
// a completed free was noticed by the poll at a call's start or waited for by a flush later in it, whether
// the flush belonged to the call or was an empty_cache before it, and what the driver refused.
type reading struct {
	late   bool // a free that looks complete at once was pending: the next call's flush waited for it
	empty  bool // an empty_cache came before the call, and did all but its growth
	full   bool // the driver had no more memory than the entries show
	waited bool // the completions at the call's start were waited for; if only some were, it comes to the same
}

// waits reports whether the call's flush waited for frees that could have been polled.
func (h reading) waits() bool { return h.late || h.waited }

// shape is what the entries inside a call look like.
type shape struct {
	lead     int // completions before any driver call
	releases bool
	grows    bool // the last driver call gets memory
	cut      int  // behind the last release: an empty_cache before the call ends there
}

// shapeOf is the shape of the entries inside a call.
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

// assumptions are what is known of a whole recording.
type assumptions struct {
	limited    bool // there is a memory limit
	expandable bool // segments are
	calls      bool // those of empty_cache and record_stream are recorded
	emptied    int  // calls of empty_cache; -1: unknown
	retried    bool // allocations were tried again after a flush, or nobody knows
}

// assume is what the statistics at the end say of all calls together: each retry flushed once, and each other flush was an
// empty_cache.
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

// retriedSurely reports whether the statistics say that allocations were tried again.
func (a assumptions) retriedSurely() bool { return a.emptied >= 0 && a.retried }

// readings are the ways to read a step, likely ones first; nil if there is nothing to read, or if the step before it was
// read together with it.
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

// paired reports whether step i is a free that looks complete at once, before a call that may have flushed: it can be
// that call that completed it.
func (a assumptions) paired(p *recording.Program, i int) bool {
	s := &p.Steps[i]
	return !a.calls && s.Kind == recording.StepFree && !s.Later && i+1 < len(p.Steps) && a.flushes(p, i+1)
}

// flushes reports whether step i is an allocation that may have flushed: that failed, released something, or grew an
// expandable segment by what the flush completed.
func (a assumptions) flushes(p *recording.Program, i int) bool {
	s := &p.Steps[i]
	if s.Kind != recording.StepAlloc {
		return s.Kind == recording.StepOOM
	}
	return a.expandable && a.retried || s.From < s.To && shapeOf(p.Inside(s)).releases
}

// callReadings are those of an allocation. late are those that concern the free before it.
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
	case s.Kind == recording.StepAlloc && !sh.grows: // only blocks that the flush completed can have served it
		return append(before, own...)
	}
	return append(own, before...)
}

// unreleased are the readings of an allocation that released nothing: it can have flushed all the same if a free
// completed in it.
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

// own are the readings without an empty_cache.
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
		return full // nothing else lets an attempt fail
	}
	return append(list, full...)
}

// choice is a step that has to be read, and the reading tried.
type choice struct {
	step     int
	readings []reading
	pick     int
	retries  int64 // how many attempts the cache tried again in it
}

// reading is the one that is tried.
func (c *choice) reading() reading { return c.readings[c.pick] }
