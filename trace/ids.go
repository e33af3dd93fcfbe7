package trace

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"sync/atomic"

	oteltrace "go.opentelemetry.io/otel/trace"
)

// IDGenerator makes the ids of spans. A TracerProvider of the SDK takes it:
//
//	provider := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(trace.IDGenerator{}), …)
//
// With it the steps of all ranks of a [Communicator] that have the same number are one trace. All
// other ids are random. Without it each rank's step is a trace of its own. It is safe for
// concurrent use.
type IDGenerator struct{}

// NewIDs returns the ids of a span without a parent.
func (g IDGenerator) NewIDs(ctx context.Context) (oteltrace.TraceID, oteltrace.SpanID) {
	id := takeTraceID(ctx)
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64())
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64())
	}
	return id, g.NewSpanID(ctx, id)
}

// NewSpanID returns the id of a span of a trace.
func (IDGenerator) NewSpanID(context.Context, oteltrace.TraceID) (id oteltrace.SpanID) {
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64())
	}
	return id
}

type traceIDKey struct{}

// wantedTrace is the id of the next root span's trace. Spans inside of that one have the same
// context, so the id may be taken only once.
type wantedTrace struct {
	id    oteltrace.TraceID
	taken atomic.Bool
}

// withTraceID sets the trace id of the next root span of ctx, if its provider has an IDGenerator.
func withTraceID(ctx context.Context, id oteltrace.TraceID) context.Context {
	return context.WithValue(ctx, traceIDKey{}, &wantedTrace{id: id})
}

// takeTraceID takes the trace id for the next root span out of ctx; zero: there is none.
func takeTraceID(ctx context.Context) oteltrace.TraceID {
	if ctx == nil {
		return oteltrace.TraceID{}
	}
	if w, _ := ctx.Value(traceIDKey{}).(*wantedTrace); w != nil && w.taken.CompareAndSwap(false, true) {
		return w.id
	}
	return oteltrace.TraceID{}
}
