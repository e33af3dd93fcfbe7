package trace

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// A step is a trace of its own, so that a sampler decides for each step, and a backend gets a trace
// as soon as its step is complete. The step's span links to the span around it, which is the run's,
// and that one links to the sampled steps. A step inside of another step is part of its trace.
//
// The steps of several ranks share a trace. Each rank computes its id from the communicator's id
// and the step's number, without a message to the others, so that samplers that decide by the id
// decide the same on all ranks. Each rank's step is a root of that trace. With a parent on another
// rank it would be sampled by its parent's flag, which only that rank can compute.

// startSpan starts the step's span, and returns the context inside of it.
func (s *Step) startSpan(ctx context.Context) context.Context {
	t := s.profiler.config.Tracer
	// These attributes are for samplers. The others are set at the end.
	attributes := oteltrace.WithAttributes(KeyStep.Int64(s.number), KeyStepDetail.String(s.detail.String()))
	options := [...]oteltrace.SpanStartOption{oteltrace.WithTimestamp(s.began), attributes, oteltrace.WithNewRoot()}
	n := len(options) - 1
	root := s.isRoot()
	if root && s.around.SpanContext().IsValid() {
		n = len(options)
	}
	if c := s.profiler.config.Communicator; root && c != nil && !t.silent() {
		ctx = withTraceID(ctx, c.traceID(s.number))
	}
	ctx, s.span = t.start(ctx, stepSpan, options[:n]...)
	if root {
		s.link()
	}
	return ctx
}

// link links the spans of the step and of the run. This is cheaper after the start than as an
// option of it, and costs nothing for a step that is not sampled.
func (s *Step) link() {
	switch {
	case s.span.IsRecording():
		s.span.AddLink(oteltrace.Link{SpanContext: s.around.SpanContext()})
		if s.span.SpanContext().IsSampled() {
			s.around.AddLink(oteltrace.Link{SpanContext: s.span.SpanContext()})
		}
	case s.around.IsRecording():
		s.profiler.config.Tracer.leftOut.Store(true)
	}
}

// isRoot reports whether the step is inside of no other step or, with ranks, of no other step of
// its communicator.
func (s *Step) isRoot() bool {
	c := s.profiler.config.Communicator
	if c == nil {
		return s.outer == nil
	}
	for outer := s.outer; outer != nil; outer = outer.outer {
		if outer.profiler.config.Communicator == c {
			return false
		}
	}
	return true
}

// traceID returns the trace of a step on all ranks.
func (c *Communicator) traceID(number int64) oteltrace.TraceID {
	id := c.inner.ID()
	h := sha256.Sum256(binary.LittleEndian.AppendUint64(append(id[:], "cistern.step"...), uint64(number)))
	return oteltrace.TraceID(h[:16])
}

// name returns a hash that identifies the communicator. It does not reveal the id, with which a
// reader could join. A nil Communicator has none.
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
