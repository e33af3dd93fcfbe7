package trace

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// memorySpans are the spans of a cache's operations.
var memorySpans = [...]struct {
	name   string
	detail Detail
}{
	memcache.OpAlloc:       {"memcache.alloc", All},
	memcache.OpFree:        {"memcache.free", All},
	memcache.OpDriverAlloc: {"memcache.driver_alloc", Slow},
	memcache.OpDriverFree:  {"memcache.driver_free", Slow},
	memcache.OpSynchronize: {"memcache.synchronize", Slow},
	memcache.OpEmptyCache:  {"memcache.empty_cache", Slow},
}

// Memory returns the observer for [memcache.Config]; of a nil Tracer it is nil. One observer serves any
// number of caches.
func (t *Tracer) Memory() memcache.Observer {
	if t == nil {
		return nil
	}
	return memoryObserver{t}
}

type memoryObserver struct{ tracer *Tracer }

// Start makes a span if the guard says yes, and takes the time of a driver allocation if a reader wants it.
func (o memoryObserver) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	if int(op) >= len(memorySpans) {
		return ctx, nil
	}
	need := memorySpans[op].detail
	if op == memcache.OpAlloc {
		need = Slow // failures are told from there on
	}
	detail := o.tracer.detail(ctx, need)
	spans := detail >= memorySpans[op].detail
	if op == memcache.OpAlloc && detail == Slow {
		return ctx, watchFailure(ctx)
	}
	timed := op == memcache.OpDriverAlloc && o.tracer.allocDuration.enabled(ctx)
	if !spans && !timed {
		return ctx, nil
	}
	run := &memoryOperation{tracer: o.tracer}
	if spans {
		ctx, run.span = o.tracer.start(ctx, memorySpans[op].name)
	}
	if timed {
		run.ctx, run.began = ctx, time.Now()
	}
	return ctx, run
}

type memoryOperation struct {
	tracer *Tracer
	span   oteltrace.Span  // nil: none
	ctx    context.Context // nil: not timed
	began  time.Time
}

// End describes the span with what is known now, and ends it.
func (o *memoryOperation) End(e memcache.Event) {
	if o.ctx != nil {
		o.tracer.allocDuration.record(o.ctx, time.Since(o.began), durationKey{device: e.Device, label: e.Pool}, e.Err)
	}
	if o.span == nil {
		return
	}
	if o.span.IsRecording() {
		o.span.SetAttributes(memoryAttributes(e)...)
	}
	o.tracer.end(o.span, e.Err)
}

// memoryAttributes are those of e that apply.
func memoryAttributes(e memcache.Event) []attribute.KeyValue {
	attributes := make([]attribute.KeyValue, 0, 10)
	attributes = append(attributes, KeyDevice.String(e.Device))
	if e.Op <= memcache.OpDriverFree {
		attributes = append(attributes, KeyStream.Int64(int64(e.Stream)))
	}
	if e.Pool != "" {
		attributes = append(attributes, KeyPool.String(e.Pool))
	}
	if e.Serial != 0 {
		attributes = append(attributes, KeySerial.Int64(int64(e.Serial)))
	}
	if e.Requested != 0 {
		attributes = append(attributes, KeyRequested.Int64(e.Requested))
	}
	if e.Bytes != 0 {
		attributes = append(attributes, KeyBytes.Int64(e.Bytes))
	}
	if e.Op == memcache.OpAlloc && e.Err == nil {
		attributes = append(attributes, KeyHit.Bool(e.Hit))
	}
	return attributes
}
