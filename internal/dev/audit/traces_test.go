package audit

import (
	"fmt"

	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// within returns the innermost step of the scene that runs; nil: there is none.
func (s *scene) within() *step {
	if open := s.running(); len(open) > 0 {
		return open[0]
	}
	return nil
}

// run is the program's own span; invalid: it has none.
func (w *world) run() oteltrace.SpanContext { return oteltrace.SpanContextFromContext(w.scenes[0].ctx) }

// place records that the span of a block's allocation or free is in the step now, or in the
// innermost running step around it. Without a running step it is in the run.
func (w *world) place(name string, h *held, in *step) {
	for in != nil && in.over {
		in = in.within
	}
	w.places[fmt.Sprintf("%s %d", name, h.Serial())] = in
}

// checkTraces compares the traces, parents and links of steps, allocations and frees.
func (w *world) checkTraces() {
	type key struct {
		name   string
		number any
	}
	made := map[key]sdktrace.ReadWriteSpan{} // by a step's number, or a block's serial
	for _, s := range w.spans.Started() {
		for _, kv := range s.Attributes() {
			if name := s.Name(); kv.Key == "cistern.block.serial" || kv.Key == "cistern.step.number" && name == "cistern.step" {
				made[key{name, kv.Value.AsInterface()}] = s
			}
		}
	}
	run := w.run()
	requireIn := func(s sdktrace.ReadWriteSpan, in *step, text string) {
		parent := run
		if in != nil {
			parent = made[key{"cistern.step", in.number}].SpanContext()
		}
		require.Equal(w.t, parent.SpanID(), s.Parent().SpanID(), "%v: %s", w, text)
		if parent.IsValid() {
			require.Equal(w.t, parent.TraceID(), s.SpanContext().TraceID(), "%v: %s", w, text)
		}
	}
	requireLinks := func(s sdktrace.ReadWriteSpan, text string, to ...oteltrace.SpanContext) {
		require.Len(w.t, s.Links(), len(to), "%v: %s", w, text)
		for i, c := range to {
			require.Equal(w.t, c.SpanID(), s.Links()[i].SpanContext.SpanID(), "%v: %s", w, text)
		}
	}
	traces := map[oteltrace.TraceID]bool{run.TraceID(): true}
	for k, s := range made {
		text := fmt.Sprint(k)
		switch k.name {
		case "cistern.step":
			e := w.stepsByNumber[k.number.(int64)]
			if e.within != nil {
				requireIn(s, e.within, text)
				requireLinks(s, text)
				continue
			}
			require.False(w.t, s.Parent().IsValid(), "%v: %s", w, text)
			require.False(w.t, traces[s.SpanContext().TraceID()], "%v: %s has a trace of its own", w, text)
			traces[s.SpanContext().TraceID()] = true
			if run.IsValid() {
				requireLinks(s, text, run)
			} else {
				requireLinks(s, text)
			}
			w.seen("traces", "step")
		case "cistern.memory.alloc", "cistern.memory.free":
			in, ok := w.places[fmt.Sprintf("%s %d", k.name, k.number)]
			require.True(w.t, ok, text)
			requireIn(s, in, text)
			alloc, traced := made[key{"cistern.memory.alloc", k.number}]
			if k.name == "cistern.memory.free" && traced {
				requireLinks(s, text, alloc.SpanContext())
				w.seen("traces", "free")
			} else {
				requireLinks(s, text)
			}
		}
	}
}
