package trace

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/log"

	"github.com/cistern-ml/cistern/memcache"
)

// EventOutOfMemory is the name of the log event of a request that failed for good.
const EventOutOfMemory = "cistern.memory.out_of_memory"

// outOfMemory is a request that ran out of memory, which a logger wants to know of, whether or not there are spans.
type outOfMemory struct {
	tracer *Tracer
	ctx    context.Context // its span is that of the log record
}

// observeOutOfMemory returns nil if nothing reads the log.
func (t *Tracer) observeOutOfMemory(ctx context.Context) memcache.Operation {
	if ctx == nil {
		ctx = context.Background()
	}
	if !t.logger.Enabled(ctx, log.EnabledParameters{Severity: log.SeverityError, EventName: EventOutOfMemory}) {
		return nil
	}
	ctx, _ = inside(ctx)
	return &outOfMemory{tracer: t, ctx: ctx}
}

// End emits the record, with the figures of the error.
func (o *outOfMemory) End(e memcache.OpInfo) {
	if e.Err == nil {
		return
	}
	a := []attribute.KeyValue{
		KeyDevice.String(e.Device), KeyStream.Int64(int64(e.Stream)), KeyPool.String(e.Pool), KeyRequested.Int64(e.Requested), errorType(e.Err),
	}
	a = appendLabel(a, e.Label)
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
	o.tracer.logger.Emit(o.ctx, r)
}
