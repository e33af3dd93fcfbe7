package audit

import (
	"flag"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/cistern-ml/cistern/memcache"
)

var (
	programs = flag.Int("programs", 16, "random programs")
	from     = flag.Uint64("from", 0, "the seed of the first program")
)

// hostile are sizes at which rounding, kinds and segments change.
var hostile = []int64{0, 1, 511, 512, 513, mib - 1, mib, mib + 1, 2 * mib, 10*mib - 1, 10 * mib, 20 * mib, 20*mib + 1, capacity, capacity + 1, 1 << 60}

// labels are the labels of blocks.
var labels = []memcache.Label{{}, {Module: "encoder.0", Category: memcache.CategoryParameter}, {Module: "encoder.0.linear", Category: memcache.CategoryActivation},
	{Module: "head", Category: memcache.CategoryGradient}, {Module: "head", Category: memcache.CategoryOptimizerState, Tags: "a"},
	{Category: memcache.CategoryInput}, {Module: "encoder.1", Category: memcache.CategoryWorkspace, Tags: "b"}}

// TestReports runs random programs, and compares each artefact in the middle of them, twice in a
// row, and at their ends. A failure names the program's seed: -from 7 -programs 1 runs it again.
func TestReports(t *testing.T) {
	n := *programs
	if testing.Short() {
		n = min(n, 6)
	}
	for seed := *from; seed < *from+uint64(n); seed++ {
		w := newWorld(t, seed)
		r := rand.New(rand.NewPCG(seed, 19))
		acts := 60 + r.IntN(120)
		for i := range acts {
			w.on(r.IntN(len(w.workers)), func() { w.act(r) })
			if t.Failed() {
				t.FailNow()
			}
			if i == acts/2 || r.IntN(40) == 0 {
				w.check()
				w.check()
			}
		}
		w.finish(r)
		w.check()
		w.checkRecording()
		w.close()
		w.checkFiles()
	}
	if n >= 16 && *from == 0 {
		requireAllShown(t)
	}
}

// act does one random thing.
func (w *world) act(r *rand.Rand) {
	in := w.scenes[r.IntN(len(w.scenes))]
	if r.IntN(3) > 0 { // mostly where something runs
		in = w.scenes[max(0, len(w.scenes)-1-r.IntN(3))]
	}
	var live, idle []*held // idle ones are used by no other stream
	for _, h := range w.books.blocks {
		if h.pending {
			continue
		}
		live = append(live, h)
		if len(h.users) == 0 {
			idle = append(idle, h)
		}
	}
	pick := func(list []*held) *held { return list[r.IntN(len(list))] }
	switch n := r.IntN(100); {
	case n < 9 && len(w.books.steps) < 5:
		w.start(in, w.started+1)
	case n < 16 && len(w.books.steps) > 0:
		w.end(w.books.steps[r.IntN(len(w.books.steps))], r.IntN(5) == 0)
	case n < 17 && len(w.ended) > 0:
		w.failLate(w.ended[r.IntN(len(w.ended))])
	case n < 18:
		w.cache.ResetAccumulatedStats()
		w.books.resetTotals()
		w.resets++
	case n < 20:
		w.cache.ResetPeakStats()
		w.books.resetPeaks()
		w.resets++
	case n < 23:
		w.empty(in, w.seed%3 < 2 && r.IntN(2) == 0)
	case n < 27 && len(idle) > 0:
		w.use(pick(idle))
	case n < 30:
		w.unhold()
	case n < 34 && len(live) > 0:
		h := pick(live)
		up := r.Int64N(min(h.Size(), mib) + 1)
		w.copy(in, h, up, r.Int64N(up+1))
	case n < 37 && len(idle) > 0:
		w.offload(in, pick(idle))
	case n < 40 && len(live) > 0:
		l := labels[r.IntN(len(labels))]
		l.Step, l.Tags = r.Int64N(4), ""
		w.relabel(pick(live), l)
	case n < 42:
		w.replay(in, r.IntN(2))
	case n < 44 && w.seed%3 == 1:
		w.capture(in, r)
	case n < 45 && len(w.captured) > 0:
		w.closeGraph(r.IntN(len(w.captured)))
	case n < 49:
		w.operate(in, labels[r.IntN(len(labels))], r.IntN(3))
	case n < 65 && len(live) > 0:
		w.free(in, pick(live), r.IntN(2) == 0)
	default:
		bytes := 1 + int64(math.Exp(r.Float64()*16))
		if r.IntN(3) == 0 {
			bytes = hostile[r.IntN(len(hostile))]
		}
		if w.held != nil && rounded(min(bytes, 1<<50)) > capacity/8 && bytes < 1<<60 {
			return // it might wait for the side stream
		}
		if w.held != nil && w.books.all["ReservedBytes"][0].current > capacity/2 {
			w.unhold()
		}
		w.alloc(in, labels[r.IntN(len(labels))], bytes, w.seed%3 < 2 && r.IntN(4) == 0)
	}
}

// finish ends the steps that are open, in any order.
func (w *world) finish(r *rand.Rand) {
	for len(w.books.steps) > 0 {
		w.end(w.books.steps[r.IntN(len(w.books.steps))], false)
	}
}

// check compares the artefacts that can be read while a program runs.
func (w *world) check() {
	w.checkStats()
	w.checkSummary()
	w.checkProfiles()
	w.checkGraphs()
	w.checkScopes()
	w.checkSnapshot()
	w.checkSteps()
	w.checkSpans()
	w.checkTraces()
	w.checkMetrics()
	w.checkPinned()
	w.checkHeap()
	w.checkLive()
	w.checkPickle()
	w.checkReport()
}

// checkFiles compares the artefacts that are complete when everything is closed.
func (w *world) checkFiles() {
	w.checkTimeline()
}

// requireAllShown fails for figures that no program gave a value.
func requireAllShown(t *testing.T) {
	requireAllCovered(t)
	// TestSoakModel of memcache has limits of splitting.
	oversize := []string{"OversizeAllocations", "OversizeSegments", "oversize_", "memory.oversize_"}
	never := append(oversize, "NumOOMRejections", "num_oom_rejections", "memory.num_oom_rejections", "NumStreamReuses", "AccountingFaults")
	for _, a := range []string{"memcache.Stats", "memcache.Stats.Map", "memcache.Stats.Since", "memcache.Summary"} {
		requireShown(t, a, never...)
	}
	requireShown(t, "memcache.Pool.Stats", append(never, "Graph", "MaxSplitSize", "NumAllocRetries", "NumOOMs", "NumSync", "NumDevice", "Hits", "Misses", "Splits", "Merges")...)
	requireShown(t, "memcache.Snapshot", "Segments[].PoolID", "Segments[].Expandable", "History[].Pool")
	requireShown(t, "memcache.GraphMemory", "Holdings[].Step", "Holdings[].Stack")
	requireShown(t, "memcache.GraphProfile", "holdings[].Holding.Requested")
	requireShown(t, "memcache.OutOfMemoryError", "OtherStreams", "Waited", "Pending")
	requireShown(t, "trace.StepProfile", "replays[].pool")
	requireShown(t, "metrics", "cistern.pinned.memory.usage{cistern.memory.state=active}", "cistern.transfer.pending", "cistern.pinned.memory.utilization{cistern.memory.state=active}")
	requireShown(t, "live/index", "state.limit")
	requireShown(t, "report", "held by graphs.allocated", "held by graphs.active", "forgotten", "stacked", "step[].late", "late", "limit", "failing", "marks", "what if", "kept", "fragmentation.keeper ", "step[].shares[]")
	requireShown(t, "report of a recording", "late", "limit", "failing", "forgotten", "stacked", "marks", "what if", "kept", "fragmentation.keeper ", "step[].shares[]")
	for _, a := range []string{"memcache.Cache", "memcache.Profile", "memcache.PeakProfile", "trace.Table", "trace.Summary"} {
		requireShown(t, a, "pending", "last_", "mean.rank", "first", "second", "slowest", "largest", "mean")
	}
}
