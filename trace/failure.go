package trace

import (
	"context"
	"sync"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/memcache"
)

// failureOperation is an allocation below the detail All: no span, but if it fails, an event on the parent's
// span. It is pooled, as nearly all of them end without a trace.
type failureOperation struct{ ctx context.Context }

var failureOperations = sync.Pool{New: func() any { return new(failureOperation) }}

func watchFailure(ctx context.Context) *failureOperation {
	o := failureOperations.Get().(*failureOperation)
	o.ctx = ctx
	return o
}

// End adds the event "memcache.alloc.failed" if there is an error.
func (o *failureOperation) End(e memcache.Event) {
	ctx := o.ctx
	o.ctx = nil
	failureOperations.Put(o)
	if e.Err == nil {
		return
	}
	oteltrace.SpanFromContext(ctx).AddEvent("memcache.alloc.failed", oteltrace.WithAttributes(append(
		memoryAttributes(e), errorType(e.Err), semconv.ExceptionMessage(e.Err.Error()))...))
}
