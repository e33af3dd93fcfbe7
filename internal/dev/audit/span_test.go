package audit

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// span is a span, an event or a log record: its name, and its attributes except the device's.
type span struct {
	name  string
	about figures
}

// tell adds a span that must be there.
func (w *world) tell(name string, about figures) { w.telling = append(w.telling, span{name, about}) }

// slow reports whether a call of the driver with the scene's context has a span.
func (w *world) slow(in *scene) bool { return w.detail == trace.All || len(in.running()) > 0 }

// tellCalls adds the spans of the device's calls in a request for memory of a kind, or in an
// emptying.
func (w *world) tellCalls(calls []call, in *scene, kind string) {
	for i, c := range calls {
		if key := "cistern.pool.name=" + kind; !c.free && c.failed {
			w.driverAllocs[key+",error.type=out_of_memory"]++
		} else if !c.free {
			w.driverAllocs[key]++
		}
		w.drawCall(c, slices.ContainsFunc(calls[:i], func(c call) bool { return c.failed }))
		if !w.slow(in) {
			continue
		}
		if c.free {
			s := w.books.segments[slices.IndexFunc(w.books.segments, func(s *segment) bool { return s.ptr == c.ptr })]
			w.tell("cistern.memory.driver_free", figures{"cistern.stream.id": s.stream, "cistern.block.size": s.size,
				"cistern.pool.name": map[bool]string{false: "small", true: "large"}[s.large]})
			continue
		}
		about := figures{"cistern.stream.id": w.main.ID(), "cistern.block.size": c.bytes, "cistern.pool.name": kind}
		if c.failed {
			about["error.type"] = "out_of_memory"
		}
		w.tell("cistern.memory.driver_alloc", about)
		if c.failed && !slices.ContainsFunc(calls[:i], func(c call) bool { return c.failed }) {
			w.tell("cistern.memory.synchronize", figures{})
		}
	}
}

// about are the attributes of a block.
func (h *held) about() figures {
	return figures{"cistern.stream.id": h.segment.stream, "cistern.pool.name": map[bool]string{false: "small", true: "large"}[h.segment.large],
		"cistern.block.serial": h.Serial(), "cistern.block.requested_size": h.requested, "cistern.block.size": h.Size()}.label(h.label)
}

// label adds the attributes of a label.
func (f figures) label(l memcache.Label) figures {
	if l == (memcache.Label{}) {
		return f
	}
	if l.Module != "" {
		f["cistern.module.name"] = l.Module
	}
	f["cistern.memory.category"] = strings.ReplaceAll(l.Category.String(), " ", "_")
	if l.Step != 0 {
		f["cistern.step.number"] = l.Step
	}
	if tag, ok := strings.CutPrefix(l.Tags, "tenant="); ok {
		f["cistern.tag.tenant"] = tag
	}
	return f
}

// String has the attributes in an order.
func (s span) String() string {
	text := s.name
	for _, k := range slices.Sorted(maps.Keys(s.about)) {
		text += fmt.Sprintf(" %s=%v", k, s.about[k])
	}
	return text
}

// attributes are a span's, except the device and the rank, which are compared here.
func (w *world) attributes(list []attribute.KeyValue) figures {
	f := figures{}
	for _, kv := range list {
		f[string(kv.Key)] = kv.Value.AsInterface()
	}
	require.Equal(w.t, "host", f["cistern.device.name"])
	delete(f, "cistern.device.name")
	ranks := [2]any{}
	if w.worldSize > 0 {
		ranks = [2]any{int64(w.rank), int64(w.worldSize)}
	}
	require.Equal(w.t, ranks, [2]any{f["cistern.rank"], f["cistern.world_size"]})
	delete(f, "cistern.rank")
	delete(f, "cistern.world_size")
	return f
}

// attributes are those of a step's span, except the device's times.
func (s *step) attributes() figures {
	f := figures{"cistern.step.number": s.number, "cistern.step.detail": map[bool]string{false: "slow", true: "all"}[s.all],
		"cistern.step.allocated.start": s.start, "cistern.step.allocated.end": s.end, "cistern.step.allocated.peak": s.peak.allocated,
		"cistern.step.requested.peak": s.requestedPeak, "cistern.step.reserved.peak": s.reservedPeak, "cistern.step.allocations": s.counts["Allocations"],
		"cistern.step.hits": s.counts["Hits"], "cistern.step.misses": s.counts["Misses"], "cistern.step.retries": s.counts["NumAllocRetries"],
		"cistern.step.out_of_memory": s.counts["NumOOMs"], "cistern.step.own.peak": s.ownPeak, "cistern.step.own.live": s.ownLive,
		"cistern.step.own.allocations": s.ownCount, "cistern.step.h2d.size": s.h2d, "cistern.step.d2h.size": s.d2h}
	if s.failed {
		f["error.type"] = "*errors.errorString"
	}
	if len(s.replays) == 0 {
		return f
	}
	count, most := int64(0), s.replays[0]
	for _, r := range s.replays {
		count += r.count
		if r.Held > most.Held {
			most = r
		}
	}
	f["cistern.step.replays"], f["cistern.step.replay.held"] = count, most.Held
	f["cistern.step.replay.pool.graphs"], f["cistern.step.replay.pool.reserved"] = most.Pool.Graphs.Load(), most.Pool.Reserved.Load()
	return f
}

// checkSpans compares all spans and their attributes, the events on them, the log, and the tracer's
// counts.
func (w *world) checkSpans() {
	want := slices.Clone(w.telling)
	var noted []span
	for i, s := range w.ended {
		noted = append(noted, s.noted...)
		p := w.profiles[i]
		device := figures{"cistern.step.device.time": p.DeviceTime.Seconds(), "cistern.step.device.busy": p.BusyTime.Seconds()}
		about := s.attributes()
		maps.Copy(about, device)
		device["cistern.step.number"], device["cistern.stream.id"] = s.number, w.main.ID()
		want = append(want, span{"cistern.step", about}, span{"cistern.step.device", device})
	}
	// Another goroutine ends the spans of copies.
	cisterntest.WaitFor(w.t, func() bool { return len(w.spans.Ended()) >= len(want) })
	var got, events []span
	for _, s := range w.spans.Ended() {
		about := w.attributes(s.Attributes())
		took := s.EndTime().Sub(s.StartTime()).Seconds()
		if strings.HasPrefix(s.Name(), "cistern.transfer.") {
			if queued, ok := about["cistern.transfer.queued"].(float64); ok {
				bytes, rate := float64(number(about["cistern.transfer.size"])), about["cistern.transfer.bandwidth"].(float64)
				require.LessOrEqual(w.t, bytes/rate, took-queued+1e-6, "%v: %v", w, s.Name())
				require.Positive(w.t, rate)
				require.GreaterOrEqual(w.t, queued, 0.0)
				delete(about, "cistern.transfer.queued")
				delete(about, "cistern.transfer.bandwidth")
				w.seen("spans", "cistern.transfer.queued", "cistern.transfer.bandwidth")
			}
		}
		got = append(got, span{s.Name(), about})
		for _, e := range s.Events() {
			if e.Name != "exception" {
				events = append(events, span{e.Name, w.failure(w.attributes(e.Attributes))})
			}
		}
	}
	w.requireSpans("spans", got, want)
	w.requireSpans("events", events, noted)
	c := w.tracer.Counts()
	n := int64(len(want))
	require.Equal(w.t, trace.Counts{Started: n + int64(len(w.books.steps)), Ended: n, Skipped: w.skipped}, c, "%v", w)
	var records, logged []span
	w.logs.mu.Lock()
	defer w.logs.mu.Unlock()
	for _, r := range w.logs.kept {
		require.Equal(w.t, "cistern.memory.out_of_memory", r.EventName())
		var list []attribute.KeyValue
		for kv := range r.WalkAttributes {
			list = append(list, attribute.KeyValue(kv))
		}
		records = append(records, span{r.EventName(), w.failure(w.attributes(list))})
	}
	for i, r := range w.failed {
		e := w.ooms[i]
		about := figures{"cistern.stream.id": r.stream, "cistern.pool.name": map[bool]string{false: "small", true: "large"}[rounded(min(r.bytes, 1<<60)) > mib],
			"cistern.block.requested_size": r.bytes}.label(r.label)
		// The error's figures were compared when it came.
		about["cistern.memory.allocated"], about["cistern.memory.reserved"] = e.Allocated, e.Reserved
		about["cistern.memory.free"], about["cistern.memory.total"] = e.Free, e.Total
		logged = append(logged, span{"cistern.memory.out_of_memory", about})
	}
	w.requireSpans("log", records, logged)
}

// failure removes the attributes that give the reason of a failure.
func (w *world) failure(about figures) figures {
	require.Equal(w.t, "out_of_memory", about["error.type"])
	delete(about, "error.type")
	delete(about, "exception.message")
	return about
}

// seen records that figures were compared in another way than by requireTrue.
func (w *world) seen(artefact string, names ...string) {
	if shown[artefact] == nil {
		shown[artefact] = map[string]bool{}
	}
	for _, n := range names {
		shown[artefact][n] = true
	}
}

// requireSpans compares lists in any order.
func (w *world) requireSpans(artefact string, got, want []span) {
	count := map[string]int{}
	for _, s := range got {
		count[s.String()]++
		for k := range s.about {
			w.seen(artefact, k)
		}
	}
	for _, s := range want {
		count[s.String()]--
	}
	var wrong []string
	for text, n := range count {
		if n != 0 {
			wrong = append(wrong, fmt.Sprintf("%+d: %s", n, text))
		}
	}
	slices.SortFunc(wrong, func(x, y string) int { return strings.Compare(x[3:], y[3:]) })
	require.Empty(w.t, wrong, "%v: %s; + is too many, - is missing", w, artefact)
}
