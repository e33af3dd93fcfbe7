package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/internal/callframe"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// FromCache makes a report of the cache of a running program: its memory now, the holders of its
// peak, and its history, as far as [memcache.Cache.RecordHistory] keeps it. The profiles are exact
// and of one moment, even if the history has forgotten entries. steps are those of a profiler, in
// any order. Requests wait while the cache is read, but not while the report is made. A cache with
// entries that no device can have is an error, as in [Read].
//
// If graphs hold memory, the page has a profile of it by the owners at capture, with the graph's
// number as a tag (memcache.Cache.GraphProfile). It is not part of the allocated memory, and
// recordings don't have it.
//
// The page begins with the cache's own peaks. If the history has forgotten that moment, or began
// after it, the page states that and shows the holders of the memory then. For a step whose
// beginning the history has forgotten the page shows the profiler's figures. Other options are
// tried only if the history begins with an empty cache and is complete; a recording of trace/record
// has more.
func FromCache(c *memcache.Cache, steps []trace.StepProfile, o Options) (*Report, error) {
	if c == nil {
		return nil, fmt.Errorf("report: FromCache: %w: the cache is nil: there is nothing to show", ErrInvalid)
	}
	state := c.Reading()
	snapshot, config := &state.Snapshot, state.Config
	name := o.Name
	if name == "" {
		name = snapshot.Device
	}
	s := &source{name: name, device: ofRank(snapshot.Device, steps, o), conf: config.Options(), owners: newOwners(), sizing: sizing{config: config, maxSplit: maxSplit(config)}}
	l := labels{owners: s.owners, byPC: make(map[uintptr]frame), allocs: make(map[uint64]int)}
	rec := historyRecording(name, c.Device(), &state)
	for i := range snapshot.History {
		s.addHistory(&snapshot.History[i], &l, rec)
	}
	s.final = []finalSegment{}
	for i := range snapshot.Segments {
		s.final = append(s.final, l.segment(&snapshot.Segments[i]))
	}
	s.profiles = []profile{l.profile("now", state.Profile), l.profile("peak of the program", state.PeakProfile)}
	if state.GraphProfile.Held > 0 {
		s.profiles = append(s.profiles, l.graphs(state.GraphProfile, state.Profile.Reserved))
	}
	s.addSpans(steps)
	if s.total = c.Device().Properties().TotalMemory; state.MemoryLimit < s.total {
		s.limit = state.MemoryLimit
	}
	s.limit = cmp.Or(o.Limit, s.limit)
	if o.OutOfMemory != nil {
		s.shortage, s.failing = l.shortage(o.OutOfMemory), o.OutOfMemory.Label.Step
	}
	if len(s.entries) == 0 {
		s.notes = append(s.notes, "the cache's history is empty: RecordHistory records the events after its call")
	}
	a, err := newAccount(s)
	if err != nil {
		return nil, err
	}
	a.addPeak(&s.profiles[1], state.MaxMemoryReserved)
	r := &Report{account: a, layers: o.Layers, addresses: o.Addresses}
	if len(o.WhatIf) > 0 || o.Suggest {
		r.estimateHistory(rec, o)
	}
	return r, nil
}

// ofRank returns the device's name with the rank, if there are ranks.
func ofRank(device string, steps []trace.StepProfile, o Options) string {
	rank, size := o.Rank, o.WorldSize
	if size == 0 && len(steps) > 0 {
		rank, size = steps[0].Rank, steps[0].WorldSize
	}
	if size == 0 {
		return device
	}
	return fmt.Sprintf("%s, rank %d of %d", device, rank, size)
}

// addPeak uses the cache's own peaks if they are above those of the history, which may have
// forgotten them.
func (a *account) addPeak(peak *profile, reserved int64) {
	if peak.allocated > a.peakBytes {
		a.forgotten = peak
		if len(a.entries) > 0 {
			a.note("the history does not contain the peak: it has at most %d allocated bytes, and the peak of the program is %d; its holders are from the cache's own profile",
				a.peakBytes, peak.allocated)
		}
	}
	a.mostReserved = max(a.mostReserved, reserved)
}

// labels numbers the owners that a cache reports.
type labels struct {
	owners *owners
	byPC   map[uintptr]frame
	allocs map[uint64]int // entries by the serials of their blocks
}

func (l *labels) owner(label memcache.Label, stack []uintptr) int32 {
	return l.owners.add(owner{category: int8(label.Category), module: label.Module, tags: label.Tags, stack: l.owners.stack(l.framesOf(stack))})
}

// relabelled returns the owner with the same stack and another label.
func (l *labels) relabelled(id int32, label memcache.Label) int32 {
	return l.owners.add(owner{category: int8(label.Category), module: label.Module, tags: label.Tags, stack: l.owners.list[id].stack})
}

// framesOf returns the calls of a stack.
func (l *labels) framesOf(stack []uintptr) (list []frame) {
	for _, pc := range stack {
		f, ok := l.byPC[pc]
		if !ok {
			if call, ok := callframe.Of(pc); ok {
				f = frame{call.Function, call.File, call.Line}
			}
			l.byPC[pc] = f
		}
		if f != (frame{}) {
			list = append(list, f)
		}
	}
	return list
}

// segment converts a segment with its blocks in use.
func (l *labels) segment(seg *memcache.SegmentSnapshot) finalSegment {
	f := finalSegment{addr: uint64(seg.Address), size: seg.TotalSize, stream: seg.Stream, mapped: seg.Expandable}
	for _, b := range seg.Blocks {
		if b.State != memcache.BlockInactive {
			f.blocks = append(f.blocks, finalBlock{addr: uint64(b.Address), size: b.Size, requested: b.RequestedSize,
				pending: b.State == memcache.BlockPendingFree, owner: l.owner(b.Label, b.Stack), step: b.Label.Step})
		}
	}
	return f
}

func (l *labels) profile(name string, p memcache.Profile) profile {
	q := profile{name: name, allocated: p.Allocated, active: p.Active, graphs: p.Graphs, reserved: p.Reserved}
	for _, h := range p.Holdings {
		q.holdings = append(q.holdings, holding{owner: l.owner(h.Label, h.Stack), step: h.Step, size: h.Size, blocks: int64(h.Blocks), bytes: h.Bytes})
	}
	return q
}

var actions = map[memcache.Action]recording.Action{
	memcache.ActionAlloc: recording.Alloc, memcache.ActionFreeRequested: recording.FreeRequested, memcache.ActionFreeCompleted: recording.FreeCompleted,
	memcache.ActionSegmentAlloc: recording.SegmentAlloc, memcache.ActionSegmentFree: recording.SegmentFree, memcache.ActionSegmentMap: recording.SegmentMap,
	memcache.ActionSegmentUnmap: recording.SegmentUnmap, memcache.ActionOOM: recording.OOM,
}

// addHistory converts an entry of the history. A block whose label was changed has the last label
// from its start, as in the cache's own profiles.
func (s *source) addHistory(h *memcache.HistoryEntry, l *labels, rec *recording.Recording) {
	if h.Action == memcache.ActionRelabel {
		if i, ok := l.allocs[h.Serial]; ok {
			e := &s.entries[i]
			e.owner, e.step = l.relabelled(e.owner, h.Label), h.Label.Step
		}
		return
	}
	action, ok := actions[h.Action]
	if !ok || h.Size <= 0 {
		return
	}
	now := h.Time.UnixNano() // an entry may have an earlier time, if its stream waited for the lock
	if n := len(s.entries); n > 0 {
		now = max(now, s.entries[n-1].time)
	}
	if action == recording.Alloc {
		l.allocs[h.Serial] = len(s.entries)
	}
	s.entries = append(s.entries, entry{action: action, addr: uint64(h.Address), requested: h.Size, size: h.Block, stream: h.Stream, time: now,
		owner: l.owner(h.Label, h.Stack), step: h.Label.Step})
	addHistoryEntry(rec, action, h)
}

// addSpans places the steps among the entries by their times.
func (s *source) addSpans(steps []trace.StepProfile) {
	if len(s.entries) == 0 {
		return
	}
	at := func(t int64) int32 {
		i, _ := slices.BinarySearchFunc(s.entries, t, func(e entry, t int64) int { return cmp.Compare(e.time, t) })
		return int32(i)
	}
	if len(steps) == 0 {
		return
	}
	steps = slices.Clone(steps)
	// By start, so that the innermost step is the last that began.
	slices.SortStableFunc(steps, func(a, b trace.StepProfile) int { return a.Start.Compare(b.Start) })
	s.run = [2]int64{steps[0].Step, steps[len(steps)-1].Step}
	for i := range steps {
		p := &steps[i]
		start := p.Start.UnixNano()
		end := start + int64(p.HostTime)
		if end < s.entries[0].time {
			continue // the history has forgotten the step
		}
		sp := span{step: p.Step, from: at(start), to: at(end + 1), failed: p.Failed, h2d: p.H2DBytes, d2h: p.D2HBytes, hostTime: int64(p.HostTime), deviceTime: -1,
			graphs: p.GraphBytes}
		if p.DeviceTimed {
			sp.deviceTime = int64(p.DeviceTime)
		}
		if start < s.entries[0].time {
			sp.late = p
		}
		s.spans = append(s.spans, sp)
	}
}

// categoryName returns the cache's name of a category.
func categoryName(c int) string { return memcache.Category(c).String() }
