package audit

import (
	"encoding/json"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/perfettotest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/trace"
)

// drawing is an event of the timeline.
type drawing struct {
	Phase string         `json:"ph"`
	Name  string         `json:"name"`
	Kind  string         `json:"cat"`
	Pid   int            `json:"pid"`
	Tid   int            `json:"tid"`
	ID    int64          `json:"id"`
	From  float64        `json:"ts"`
	Dur   float64        `json:"dur"`
	Args  map[string]any `json:"args"`
}

// checkTimeline compares the file of a timeline: its counters in order, and its spans.
func (w *world) checkTimeline() {
	require.Empty(w.t, perfettotest.Check(w.drawn.Bytes()), "%v", w)
	d := json.NewDecoder(&w.drawn)
	d.UseNumber()
	var events []drawing
	require.NoError(w.t, d.Decode(&events))
	got, counters := []span{}, figures{}
	layers, n := map[string]bool{}, map[string]int{}
	for _, e := range events {
		switch {
		case e.Phase == "M" || e.Kind == "launch" || e.Phase == "i" && e.Name == "start":
		case e.Phase == "C":
			for arg, v := range e.Args {
				counters[fmt.Sprintf("%s[%d].%s", e.Name, n[e.Name], arg)] = v
			}
			n[e.Name]++
		case e.Kind == "layer":
			layers[fmt.Sprint(e.Name, " ", e.Args["step"])] = true
		default:
			about := figures{}
			for k, v := range e.Args {
				if k != "queued for ns" && k != "error" && k != "device time in ns" {
					about[k] = v
				}
			}
			got = append(got, span{e.Kind + ": " + e.Name, about})
		}
		if e.Kind == "step" {
			w.checkDrawnStep(e)
		}
	}
	want, last := figures{}, map[string]int64{"memory active": -1, "memory reserved": -1}
	changes := map[string]int{}
	for i, l := range w.levels {
		want[fmt.Sprintf("memory allocated[%d].bytes", i)] = l.allocated
		for c, bytes := range l.byCategory {
			want[fmt.Sprintf("memory by category[%d].%v", i, memcache.Category(c))] = bytes
		}
		for name, v := range map[string]int64{"memory active": l.active, "memory reserved": l.reserved} {
			if last[name] != v {
				want[fmt.Sprintf("%s[%d].bytes", name, changes[name])] = v
				changes[name]++
				last[name] = v
			}
		}
	}
	requireTrue(w.t, "timeline counters", counters, want, w)
	w.requireSpans("timeline", got, w.drawnSpans())
	w.checkDrawnKernels(events)
	wantLayers := w.drawnLayers()
	require.Equal(w.t, wantLayers, layers, "%v", w)
}

// drawnSpans returns all spans and moments except those of layers.
func (w *world) drawnSpans() (want []span) {
	want = append(want, w.drawing...)
	for _, s := range w.ended {
		name := fmt.Sprintf("step: step %d", s.number)
		if s.failed {
			name += " (failed)"
		}
		want = append(want, span{name, figures{"step": s.number, "allocated at the start": s.start, "allocated at the end": s.end,
			"allocated at the peak": s.peak.allocated, "reserved at the peak": s.reservedPeak, "allocations": s.counts["Allocations"],
			"driver allocations": s.counts["NumDeviceAlloc"], "copied to the device": s.h2d, "copied to the host": s.d2h}})
		want = append(want, span{fmt.Sprintf("device step: step %d", s.number), figures{"step": s.number}})
	}
	return want
}

// checkDrawnStep compares the times of a step with its profile's.
func (w *world) checkDrawnStep(e drawing) {
	var p trace.StepProfile
	for _, q := range w.profiles {
		if fmt.Sprint(q.Step) == fmt.Sprint(e.Args["step"]) {
			p = q
		}
	}
	require.InDelta(w.t, float64(p.HostTime.Nanoseconds())/1e3, e.Dur, 1e-2, "%v: step %d", w, p.Step)
	require.Equal(w.t, fmt.Sprint(p.DeviceTime.Nanoseconds()), fmt.Sprint(e.Args["device time in ns"]), "%v", w)
	w.seen("timeline", "device time in ns")
}

// draw adds the expected entry of the timeline about something with a label.
func (w *world) draw(name string, l memcache.Label, about figures) {
	if l.Module != "" {
		about["module"] = l.Module
	}
	if l.Category != memcache.CategoryOther {
		about["category"] = l.Category
	}
	if l.Step != 0 {
		about["step"] = l.Step
	}
	w.drawing = append(w.drawing, span{name, about})
}

// drawCall adds a call of the device, which may not be the first of its request that fails.
func (w *world) drawCall(c call, again bool) {
	name, about := "allocator: driver_alloc", figures{"device": "host", "bytes": c.bytes}
	switch {
	case c.free:
		name = "allocator: driver_free"
		for _, s := range w.books.segments {
			if s.ptr == c.ptr {
				about["bytes"] = s.size
			}
		}
	case c.failed:
		name += " (failed)"
		if !again {
			w.drawing = append(w.drawing, span{"allocator: synchronize", figures{"device": "host"}})
		}
	}
	w.drawing = append(w.drawing, span{name, about})
}
