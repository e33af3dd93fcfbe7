package trace

import (
	"context"
	"errors"
	"sync"
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
	memcache.OpAlloc:       {"cistern.memory.alloc", All},
	memcache.OpFree:        {"cistern.memory.free", All},
	memcache.OpDriverAlloc: {"cistern.memory.driver_alloc", Slow},
	memcache.OpDriverFree:  {"cistern.memory.driver_free", Slow},
	memcache.OpSynchronize: {"cistern.memory.synchronize", Slow},
	memcache.OpEmptyCache:  {"cistern.memory.empty_cache", Slow},
	memcache.OpWait:        {"cistern.memory.wait", Slow},
}

// Memory returns the observer for [memcache.Config]; nil for a nil Tracer. One observer serves any
// number of caches.
func (t *Tracer) Memory() memcache.Observer {
	if t.off() {
		return nil
	}
	return memoryObserver{t}
}

type memoryObserver struct{ tracer *Tracer }

// Start makes a span if [Tracer.detail] allows it, and measures a driver allocation if a reader
// uses that.
func (o memoryObserver) Start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	switch {
	case op <= memcache.OpFree:
		return o.start(ctx, op)
	case op == memcache.OpAllocFailed:
		return ctx, o.tracer.observeFailure(ctx)
	case int(op) >= len(memorySpans) || memorySpans[op].name == "":
		return ctx, nil
	}
	r := region(ctx, memorySpans[op].name)
	ctx, run := o.start(ctx, op)
	if r != nil {
		return ctx, memoryRegion{r, run}
	}
	return ctx, run
}

// start is Start without its slow and rare parts.
func (o memoryObserver) start(ctx context.Context, op memcache.Op) (context.Context, memcache.Operation) {
	need := memorySpans[op].detail
	ctx, detail := o.tracer.detail(ctx, need)
	timed := op == memcache.OpDriverAlloc && o.tracer.allocDuration.enabled(ctx)
	late := op == memcache.OpFree && (detail >= need && !recording(ctx) || detail < need && !o.tracer.blocks.empty())
	if detail < need && !timed && !late {
		return ctx, nil
	}
	run := memoryOperations.Get().(*memoryOperation)
	run.tracer = o.tracer
	if late {
		run.root = detail >= need
	} else if detail >= need {
		if op == memcache.OpAlloc {
			run.around = oteltrace.SpanFromContext(ctx)
		}
		ctx, run.span = o.tracer.start(ctx, memorySpans[op].name)
	}
	if timed || late {
		run.began = time.Now()
	}
	run.ctx = ctx
	return ctx, run
}

// memoryOperation is one operation. Without a span it is timed, or a free whose allocation may have
// had a span. It is pooled, because most such frees end without a span.
type memoryOperation struct {
	tracer     *Tracer
	ctx        context.Context
	span       oteltrace.Span // nil: none
	around     oteltrace.Span // of an allocation with a span: its parent
	began      time.Time      // zero: not timed
	root       bool           // a free: if it fails, it has a span without a parent
	attributes []attribute.KeyValue
}

var memoryOperations = sync.Pool{New: func() any { return new(memoryOperation) }}

// End sets the span's attributes and ends it.
func (o *memoryOperation) End(e memcache.OpInfo) {
	switch {
	case e.Op == memcache.OpFree:
		o.tie(e)
	case !o.began.IsZero():
		o.tracer.allocDuration.record(o.ctx, time.Since(o.began), durationKey{device: e.Device, label: e.Pool}, e.Err)
	}
	if o.span != nil {
		o.attributes = describe(o.attributes, e)
		o.span.SetAttributes(o.attributes...)
		if e.Op == memcache.OpAlloc && e.Err == nil && o.span.IsRecording() && o.span.SpanContext().IsSampled() {
			b := blockSpan{SpanContext: o.span.SpanContext()}
			if _, step := inside(o.ctx); step != nil {
				b.place = step.placed()
			} else {
				b.around = o.around
			}
			o.tracer.blocks.keep(blockKey{e.Cache, e.Serial}, b)
		}
		o.tracer.end(o.span, e.Err)
	}
	*o = memoryOperation{attributes: o.attributes[:0]}
	memoryOperations.Put(o)
}

// describe appends the attributes of e that apply. The SDK copies them.
func describe(a []attribute.KeyValue, e memcache.OpInfo) []attribute.KeyValue {
	a = append(a, KeyDevice.String(e.Device))
	if e.Op <= memcache.OpDriverFree || e.Op == memcache.OpAllocFailed || e.Op == memcache.OpWait {
		a = append(a, KeyStream.Int64(int64(e.Stream)))
	}
	if e.Pool != "" {
		a = append(a, KeyPool.String(e.Pool))
	}
	if e.Serial != 0 {
		a = append(a, KeySerial.Int64(int64(e.Serial)))
	}
	if e.Requested != 0 {
		a = append(a, KeyRequested.Int64(e.Requested))
	}
	if e.Bytes != 0 {
		a = append(a, KeyBytes.Int64(e.Bytes))
	}
	if e.Op == memcache.OpAlloc && e.Err == nil {
		a = append(a, KeyHit.Bool(e.Hit))
	}
	return appendLabel(a, e.Label)
}

// tie links the span of a free to that of the block's allocation, if the allocation has one. The
// allocation's span is not the parent, because it has ended. Without a recording parent in its own
// context the free takes the parent from [blockSpan.parent], or is a root.
func (o *memoryOperation) tie(e memcache.OpInfo) {
	var alloc blockSpan
	var ok bool
	if !errors.Is(e.Err, memcache.ErrFreed) { // else the span belongs to the first free
		alloc, ok = o.tracer.blocks.take(blockKey{e.Cache, e.Serial})
	}
	link := oteltrace.Link{SpanContext: alloc.SpanContext}
	if o.span != nil {
		if ok {
			o.span.AddLink(link)
		}
		return
	}
	if !ok && (!o.root || e.Err == nil) { // the allocation has no span either
		return
	}
	options := []oteltrace.SpanStartOption{oteltrace.WithTimestamp(o.began)}
	ctx, _ := inside(o.ctx)
	if ok {
		options = append(options, oteltrace.WithLinks(link))
		if !recording(ctx) {
			ctx = oteltrace.ContextWithSpanContext(ctx, alloc.parent())
		}
	}
	o.tracer.counts.tied.Add(1)
	_, o.span = o.tracer.start(ctx, memorySpans[e.Op].name, options...)
}
