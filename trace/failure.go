package trace

import (
	"context"
	"errors"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// EventOutOfMemory is the name of the log event of a request that ran out of memory after all
// retries.
const EventOutOfMemory = "cistern.memory.out_of_memory"

// eventAllocFailed is the event on the parent span of a failed allocation that has no span.
const eventAllocFailed = "cistern.memory.alloc.failed"

// failure is a failed request. It is observed only after the failure, so that other requests cost
// nothing.
type failure struct {
	tracer *Tracer
	ctx    context.Context // with the span of the log record
	span   oteltrace.Span  // the parent span that gets the event; nil: none
	logged bool
}

// observeFailure returns nil if neither a log nor a span needs the failure.
func (t *Tracer) observeFailure(ctx context.Context) memcache.Operation {
	if ctx == nil {
		ctx = context.Background()
	}
	f := failure{tracer: t,
		logged: t.logger.Enabled(ctx, log.EnabledParameters{Severity: log.SeverityError, EventName: EventOutOfMemory})}
	var detail Detail
	if f.ctx, detail = t.detail(ctx, Slow); detail == Slow {
		f.span = oteltrace.SpanFromContext(f.ctx)
	}
	if !f.logged && f.span == nil {
		return nil
	}
	if f.logged {
		f.ctx, _ = inside(f.ctx)
	}
	return f
}

// End adds the event to the span, and logs a request that ran out of memory.
func (f failure) End(e memcache.OpInfo) {
	if e.Err == nil {
		return
	}
	if f.span != nil {
		f.span.AddEvent(eventAllocFailed, oteltrace.WithAttributes(append(describe(slices.Clone(f.tracer.rank), e),
			errorType(e.Err), semconv.ExceptionMessage(e.Err.Error()))...))
	}
	if f.logged && errors.Is(e.Err, memcache.ErrOutOfMemory) {
		f.log(e)
	}
}

// log emits the record, with the figures of the error.
func (f failure) log(e memcache.OpInfo) {
	a := []attribute.KeyValue{
		KeyDevice.String(e.Device), KeyStream.Int64(int64(e.Stream)), KeyPool.String(e.Pool), KeyRequested.Int64(e.Requested), errorType(e.Err),
	}
	a = appendLabel(append(a, f.tracer.rank...), e.Label)
	var oom *memcache.OutOfMemoryError
	if errors.As(e.Err, &oom) {
		a = append(a, KeyMemoryAllocated.Int64(oom.Allocated), KeyMemoryReserved.Int64(oom.Reserved),
			KeyMemoryFree.Int64(oom.Free), KeyMemoryTotal.Int64(oom.Total))
		if oom.Limit >= 0 {
			a = append(a, KeyMemoryLimit.Int64(oom.Limit))
		}
	}
	var r log.Record
	r.SetEventName(EventOutOfMemory)
	r.SetTimestamp(time.Now())
	r.SetSeverity(log.SeverityError)
	r.SetSeverityText(log.SeverityError.String())
	r.SetBody(attribute.StringValue(e.Err.Error()))
	r.AddAttributes(a...)
	f.tracer.logger.Emit(f.ctx, r)
}
