package audit

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
	"github.com/cistern-ml/cistern/trace/record"
)

// step is the truth about a step of a profiler.
type step struct {
	number                      int64
	traceID                     string
	late                        bool // it failed when it was complete
	over, failed                bool
	start, end                  int64 // bytes allocated
	requestedPeak               int64
	reserved, reservedPeak      int64
	counts                      map[string]int64
	ownLive, ownPeak, ownCount  int64
	h2d, d2h                    int64
	peak                        mark
	holders                     trace.StepPeak // of the peak, once it has ended
	replays                     []replayed
	startedAfter, startedBefore time.Time
	endedAfter, endedBefore     time.Time
	noted                       []span // events on its span
	from, to                    int    // entries of the history before it, and before its end
	mark                        *record.Mark
	scope                       *memcache.Scope // beside the step\'s own
	scopeLive                   int64           // own blocks that are not freed, also after the end
	window                      memcache.Window
	settled                     time.Time // the device is done with it
	handle                      *trace.Step
	tied                        int64 // frees that have the span of their allocation, while it was open
	all                         bool  // at the detail All
	within                      *step // around it when it began; nil: none
}

// replayed is a graph with the number of its replays.
type replayed struct {
	*memcache.GraphMemory
	count int64
}

// begin makes the truth of a step that begins now.
func (b *books) begin(number int64) *step {
	s := &step{number: number, start: b.all["AllocatedBytes"][0].current, counts: map[string]int64{}, peak: b.now(), startedAfter: time.Now()}
	s.from = b.entries()
	level := func(name string) memcache.Level {
		n := b.all[name][0].current
		return memcache.Level{Start: n, Current: n, Peak: n}
	}
	s.window = memcache.Window{Allocated: level("AllocatedBytes"), Requested: level("RequestedBytes"), Reserved: level("ReservedBytes")}
	s.see(b)
	b.steps = append(b.steps, s)
	return s
}

// see raises the step's peaks.
func (s *step) see(b *books) {
	s.end = b.all["AllocatedBytes"][0].current
	s.requestedPeak = max(s.requestedPeak, b.requested())
	s.reserved = b.all["ReservedBytes"][0].current
	held, _ := b.graphBytes()
	s.window.GraphBytes = held[0] + held[1]
	s.reservedPeak = max(s.reservedPeak, s.reserved)
	if s.end > s.peak.allocated {
		s.peak = b.now()
	}
	for name, l := range map[string]*memcache.Level{"AllocatedBytes": &s.window.Allocated, "RequestedBytes": &s.window.Requested, "ReservedBytes": &s.window.Reserved} {
		l.Current = b.all[name][0].current
		l.Peak = max(l.Peak, l.Current)
	}
}

// checkScopes compares the figures of scopes, open ones and those that have ended.
func (w *world) checkScopes() {
	for _, s := range slices.Concat(w.ended, w.books.steps) {
		c := s.counts
		want := s.window
		want.Allocations, want.Frees, want.Hits, want.Misses = c["Allocations"], c["Frees"], c["Hits"], c["Misses"]
		want.DriverAllocs, want.Retries, want.OutOfMemory = c["NumDeviceAlloc"], c["NumAllocRetries"], c["NumOOMs"]
		requireTrue(w.t, "memcache.Scope", of(s.scope.Window()), of(want), w, ", step ", s.number)
		requireTrue(w.t, "memcache.Scope", of(s.scope.Own()), of(memcache.Own{Live: s.scopeLive, Peak: s.ownPeak, Allocations: s.ownCount}), w, ", step ", s.number)
	}
}

// requested returns the requested bytes of the active blocks.
func (b *books) requested() int64 { return b.all["RequestedBytes"][0].current }

func (s *step) count(name string, n int64) { s.counts[name] += n }

// own adds bytes to the step's own blocks.
func (s *step) own(bytes int64) {
	s.scopeLive += bytes
	if s.over {
		return
	}
	if bytes > 0 {
		s.ownCount++
	}
	s.ownLive += bytes
	s.ownPeak = max(s.ownPeak, s.ownLive)
}

// finish ends the step.
func (b *books) finish(s *step) {
	s.see(b)
	s.to = b.entries()
	s.over = true
	b.steps = slices.DeleteFunc(b.steps, func(o *step) bool { return o == s })
	s.holders = trace.StepPeak{
		Categories: shares(s.peak.blocks, func(l memcache.Label) string { return l.Category.String() }),
		Modules:    shares(s.peak.blocks, func(l memcache.Label) string { return l.Module }),
		Graphs:     s.peak.graphs,
		Free:       s.peak.reserved - s.peak.active - s.peak.graphs,
	}
}

// shares adds blocks up by a part of their labels: the largest share first, equal ones by name.
func shares(blocks []*held, key func(memcache.Label) string) []memcache.Share {
	sums := map[string]memcache.Share{}
	for _, h := range blocks {
		name := key(h.label)
		sums[name] = memcache.Share{Name: name, Blocks: sums[name].Blocks + 1, Bytes: sums[name].Bytes + h.Size()}
	}
	list := []memcache.Share{}
	for _, s := range sums {
		list = append(list, s)
	}
	slices.SortFunc(list, func(x, y memcache.Share) int {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(x.Name, y.Name))
	})
	return list
}

func (s *step) replayed(g *memcache.GraphMemory) {
	if s.over {
		return
	}
	for i := range s.replays {
		if s.replays[i].GraphMemory == g {
			s.replays[i].count++
			return
		}
	}
	s.replays = append(s.replays, replayed{g, 1})
}

// profile is the truth about a step's profile as JSON has it. Times are known up to the moments
// around its calls.
func (w *world) profile(s *step) figures {
	f := figures{
		"rank": w.rank, "world_size": w.worldSize, "step": s.number, "trace_id": s.traceID, "failed": s.failed, "allocated_start": s.start, "allocated_end": s.end, "allocated_peak": s.peak.allocated,
		"requested_peak": s.requestedPeak, "reserved": s.reserved, "reserved_peak": s.reservedPeak,
		"allocations": s.counts["Allocations"], "frees": s.counts["Frees"], "hits": s.counts["Hits"], "misses": s.counts["Misses"],
		"driver_allocs": s.counts["NumDeviceAlloc"], "retries": s.counts["NumAllocRetries"], "out_of_memory": s.counts["NumOOMs"],
		"own_peak": s.ownPeak, "graph_bytes": s.window.GraphBytes, "own_live": s.ownLive, "own_allocations": s.ownCount, "h2d_bytes": s.h2d, "d2h_bytes": s.d2h,
		"host_time_ns": between{float64(s.endedAfter.Sub(s.startedBefore)), float64(s.endedBefore.Sub(s.startedAfter))},
		"device_timed": true, "busy_timed": true, "device_time_ns": between{0, float64(s.settled.Sub(s.startedAfter))},
		"busy_time_ns": between{0, float64(s.settled.Sub(s.startedAfter))}, "peak.free": s.holders.Free, "peak.graphs": s.holders.Graphs,
	}
	f.shares("peak.categories", s.holders.Categories)
	f.shares("peak.modules", s.holders.Modules)
	for i, r := range s.replays {
		at := fmt.Sprintf("replays[%d].", i)
		f[at+"graph"], f[at+"count"], f[at+"held"], f[at+"allocations"] = r.Number, r.count, r.Held, r.Allocations
		f[at+"pool[0]"], f[at+"pool[1]"] = 0, r.Pool.ID[1]
		f[at+"pool_graphs"], f[at+"pool_reserved"] = r.Pool.Graphs.Load(), r.Pool.Reserved.Load()
		a, g := r.Holdings[0], r.Holdings[1]
		f.shares(at+"categories", []memcache.Share{{Name: "activation", Blocks: 1, Bytes: a.Bytes}, {Name: "gradient", Blocks: 1, Bytes: g.Bytes}})
		f.shares(at+"modules", []memcache.Share{{Name: "head", Blocks: 1, Bytes: a.Bytes}, {Name: "", Blocks: 1, Bytes: g.Bytes}})
	}
	return f
}

func (f figures) shares(name string, list []memcache.Share) {
	for i, s := range list {
		at := fmt.Sprintf("%s[%d].", name, i)
		f[at+"name"], f[at+"blocks"], f[at+"bytes"] = s.Name, s.Blocks, s.Bytes
	}
}

// checkSteps compares the profiles of the steps that have ended, and their sums.
func (w *world) checkSteps() {
	require.NoError(w.t, ignore(w.profiler.Flush(context.Background()), errProgram))
	require.Len(w.t, w.profiles, len(w.ended), "%v", w)
	for i, s := range w.ended {
		if s.settled.IsZero() {
			s.settled = time.Now()
		}
		for j, p := range []trace.StepProfile{w.profiles[i], s.handle.Profile()} {
			want := w.profile(s)
			want["failed"] = s.failed || j == 1 && s.late
			requireTrue(w.t, "trace.StepProfile", w.profileFigures(p), want, w, ", step ", s.number)
			require.LessOrEqual(w.t, p.BusyTime, p.DeviceTime)
			rate := 0.0
			if n := s.counts["Hits"] + s.counts["Misses"]; n > 0 {
				rate = float64(s.counts["Hits"]) / float64(n)
			}
			require.InDelta(w.t, rate, p.HitRate(), 1e-12)
		}
	}
	w.checkSummaryOfSteps()
	w.checkTable()
}

// profileFigures are those of a profile, without its start, which is compared here.
func (w *world) profileFigures(p trace.StepProfile) figures {
	text, err := json.Marshal(p)
	require.NoError(w.t, err)
	f := fromJSON(w.t, text)
	s := w.ended[slices.IndexFunc(w.ended, func(s *step) bool { return s.number == p.Step })]
	require.False(w.t, p.Start.Before(s.startedAfter) || p.Start.After(s.startedBefore), "%v: the start of step %d", w, p.Step)
	delete(f, "start")
	return f
}

// checkSummaryOfSteps compares the sum of the steps: whole profiles in it are those that were
// compared before.
func (w *world) checkSummaryOfSteps() {
	document := func(v any) figures {
		text, err := json.Marshal(v)
		require.NoError(w.t, err)
		return fromJSON(w.t, text)
	}
	got, want := document(w.profiler.Summary()), figures{}
	within := func(name string, p trace.StepProfile) {
		for key, v := range document(p) {
			want[name+"."+key] = v
		}
	}
	var good, means []trace.StepProfile
	var failed, replayed trace.StepProfile
	var failures, ooms, retries, hits, requests int64
	for i, s := range w.ended {
		ooms += s.counts["NumOOMs"]
		retries += s.counts["NumAllocRetries"]
		if len(s.replays) > 0 {
			replayed = w.profiles[i]
		}
		if s.failed || s.late {
			failures++
		}
		if s.failed {
			continue
		}
		good = append(good, w.profiles[i])
		if s.late {
			continue // it stays what it was, and is in no mean
		}
		means = append(means, w.profiles[i])
		hits += s.counts["Hits"]
		requests += s.counts["Hits"] + s.counts["Misses"]
	}
	want["steps"], want["failed"], want["pending"], want["out_of_memory"], want["retries"] = len(w.ended), failures, 0, ooms, retries
	want["rank"], want["world_size"] = w.rank, w.worldSize
	want["hit_rate"] = between{0, 0}
	if requests > 0 {
		rate := float64(hits) / float64(requests)
		want["hit_rate"] = between{rate - 1e-9, rate + 1e-9}
	}
	largest := func(of func(trace.StepProfile) int64) (most trace.StepProfile) {
		for i, p := range good {
			if i == 0 || of(p) > of(most) {
				most = p
			}
		}
		return most
	}
	if w.lastFailed != nil {
		failed = w.profiles[slices.Index(w.ended, w.lastFailed)]
		failed.Failed = true
	}
	within("last_failed", failed)
	within("last_replayed", replayed)
	within("largest", largest(func(p trace.StepProfile) int64 { return p.AllocatedPeak }))
	within("slowest", largest(func(p trace.StepProfile) int64 { return int64(max(p.HostTime, p.DeviceTime)) }))
	for i, name := range []string{"first", "second"} {
		if i < len(good) {
			within(name, good[i])
		} else {
			within(name, trace.StepProfile{})
		}
	}
	within("mean", trace.StepProfile{})
	for i, p := range means {
		for key, v := range document(p) {
			n, ok := v.(json.Number)
			if !ok || key == "step" || strings.Contains(key, ".") {
				continue
			}
			f, err := n.Float64()
			require.NoError(w.t, err)
			sum, _ := want["mean."+key].(between)
			if i == 0 {
				sum = between{}
			}
			sum.low += f / float64(len(means))
			sum.high = sum.low
			want["mean."+key] = sum
		}
		want["mean.device_timed"], want["mean.busy_timed"] = true, true
	}
	for key, v := range want {
		if mean, ok := v.(between); ok && strings.HasPrefix(key, "mean.") {
			want[key] = between{mean.low - 0.6, mean.high + 0.6} // rounded
		}
	}
	requireTrue(w.t, "trace.Summary", got, want, w)
}

// ignore is err, or nil if it is one of a class.
func ignore(err, class error) error {
	if errors.Is(err, class) {
		return nil
	}
	return err
}
