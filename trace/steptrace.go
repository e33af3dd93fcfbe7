package trace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// A step of several ranks is one trace: each rank works its id out of what all ranks know, the communicator's id and the step's number, and says nothing to the others. The
// API has no way to choose the id of a root span, so the ranks' steps have a parent that nobody sends: a span of that trace, in another process, as far as an SDK can tell.

// stepContext is the parent of a step on all ranks.
func (c *Communicator) stepContext(number int64, flags oteltrace.TraceFlags) oteltrace.SpanContext {
	id := c.inner.ID()
	h := sha256.Sum256(binary.LittleEndian.AppendUint64(append(id[:], "cistern.step"...), uint64(number)))
	return oteltrace.NewSpanContext(oteltrace.SpanContextConfig{
		TraceID: oteltrace.TraceID(h[:16]), SpanID: oteltrace.SpanID(h[16:24]), TraceFlags: flags, Remote: true,
	})
}

// name tells communicators apart, and does not let a reader join one. The nil Communicator has none.
func (c *Communicator) name() string {
	if c == nil {
		return ""
	}
	c.naming.Do(func() {
		id := c.inner.ID()
		h := sha256.Sum256(append(id[:], "cistern.communicator"...))
		c.hash = hex.EncodeToString(h[:8])
	})
	return c.hash
}

// together makes a step that is about to start one of all ranks' trace, with a link to the span around it, unless it is inside of such a step. It is recorded if that span is; without one, as the SDK's
// sampler says of what another process has sampled.
func (s *Step) together(ctx context.Context, options []oteltrace.SpanStartOption) (context.Context, []oteltrace.SpanStartOption) {
	c := s.profiler.config.Communicator
	if c == nil || s.profiler.config.Tracer.silent() {
		return ctx, options
	}
	for outer := s.outer; outer != nil; outer = outer.outer {
		if outer.profiler.config.Communicator == c {
			return ctx, options
		}
	}
	flags := oteltrace.FlagsSampled
	if around := s.around.SpanContext(); around.IsValid() {
		flags = around.TraceFlags()
		options = append(options, oteltrace.WithLinks(oteltrace.Link{SpanContext: around}))
	}
	return oteltrace.ContextWithSpanContext(ctx, c.stepContext(s.number, flags)), options
}
