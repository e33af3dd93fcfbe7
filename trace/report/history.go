package report

import (
	"slices"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/recording"
	"github.com/cistern-ml/cistern/internal/replay"
	"github.com/cistern-ml/cistern/memcache"
)

// A cache's history is less than the stream of it that trace/record writes. The ring forgets
// entries, begins when it is turned on, and does not record calls of EmptyCache. Other options are
// therefore tried only if a replay under the recorded options reproduces the history's figures.

// historyRecording returns a recording for the entries of a cache's history, with the contents of
// trace/record's header.
func historyRecording(name string, dev device.Device, state *memcache.Reading) *recording.Recording {
	total := dev.Properties().TotalMemory
	rec := &recording.Recording{Name: name, Conf: state.Config.Options(), Own: true, TotalMemory: total}
	if state.MemoryLimit < total {
		rec.Limit, rec.LimitKnown = state.MemoryLimit, true
	}
	_, rec.HostMemory = dev.(device.HostVisible)
	return rec
}

// addHistoryEntry appends an entry.
func addHistoryEntry(rec *recording.Recording, action recording.Action, h *memcache.HistoryEntry) {
	e := recording.Entry{Action: action, Addr: h.Address, Size: h.Size, Stream: h.Stream, Free: h.Free, Block: -1}
	switch action {
	case recording.Alloc:
		e.Bytes = h.Block
		if h.Grew {
			e.Flags |= recording.Grew
		}
		if h.Pool != (memcache.PoolID{}) {
			e.Flags |= recording.Private
			rec.PrivatePools = true
		}
	case recording.FreeRequested, recording.FreeCompleted:
		if h.AtOnce {
			e.Flags |= recording.AtOnce
		}
	}
	rec.Entries = append(rec.Entries, e)
}

// withEmptyCache returns the recording with calls of EmptyCache where memory went back to the
// driver. If always is set it does so inside of requests too, because a request that had to release
// memory looks like one after EmptyCache.
func withEmptyCache(rec *recording.Recording, always bool) *recording.Recording {
	out := *rec
	out.Entries = make([]recording.Entry, 0, len(rec.Entries)+16)
	released := false
	for _, e := range rec.Entries {
		ends := e.Action == recording.FreeRequested || e.Action == recording.Alloc && e.Flags&recording.Grew == 0
		if always {
			ends = ends || e.Action == recording.Alloc || e.Action == recording.SegmentAlloc || e.Action == recording.SegmentMap || e.Action == recording.OOM
		}
		if released && ends {
			out.Entries = append(out.Entries, recording.Entry{Action: recording.EmptyCache, Block: -1})
		}
		released = e.Action.Releases() || released && e.Action.Driver() && !ends || released && e.Action == recording.FreeCompleted
		out.Entries = append(out.Entries, e)
	}
	if released {
		out.Entries = append(out.Entries, recording.Entry{Action: recording.EmptyCache, Block: -1})
	}
	return &out
}

// estimateHistory is estimate for a cache's history, if that begins with an empty cache and is
// complete.
func (r *Report) estimateHistory(rec *recording.Recording, o Options) {
	const instead = "; cistern report can replay a recording that trace/record made from the program's start"
	a := r.account
	if reason := a.partial(); reason != "" {
		a.note("other options can't be tried: %s%s", reason, instead)
		return
	}
	for _, always := range []bool{false, true} {
		if tried := withEmptyCache(rec, always); r.replays(tried) {
			r.estimate(tried, o)
			return
		}
	}
	a.note("other options can't be tried: a replay of the history does not reproduce its figures, because it lacks events that its calls depended on%s", instead)
}

// replays reports whether a replay of the entries under their own options reproduces their figures.
func (r *Report) replays(rec *recording.Recording) bool {
	a := r.account
	p, err := recording.NewProgram(rec)
	if err != nil {
		return false
	}
	s, err := replay.NewScenario(p)
	if err != nil {
		return false
	}
	config, err := replay.Config(p)
	if err != nil {
		return false
	}
	cost, err := s.Estimate(config)
	if err != nil {
		return false
	}
	driver, ooms := int64(0), int64(0)
	for i := range a.entries {
		switch action := a.entries[i].action; {
		case action.Driver():
			driver++
		case action == recording.OOM:
			ooms++
		}
	}
	return cost.PeakAllocated == a.peakBytes && cost.PeakReserved == a.peakReserved && cost.DriverCalls == driver && cost.OOMs == ooms
}

// partial returns why the history is not complete from an empty cache on; "": it is.
func (a *account) partial() string {
	switch {
	case len(a.entries) == 0:
		return "there is no history"
	case a.forgotten != nil:
		return "the history does not contain the peak"
	}
	if a.late() {
		return "memory was in use before the first entry of the history"
	}
	return ""
}

// late reports whether memory was in use before the first entry.
func (a *account) late() bool {
	return a.began || slices.ContainsFunc(a.blocks, func(b block) bool { return b.alloc < 0 }) ||
		slices.ContainsFunc(a.ranges, func(m memory) bool { return m.from < 0 })
}
