package trace

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/transfer"
)

// transferSpans are the names of the spans of a pool's operations. All have the detail Slow.
var transferSpans = [...]string{
	transfer.OpH2D:         "cistern.transfer.h2d",
	transfer.OpD2H:         "cistern.transfer.d2h",
	transfer.OpD2D:         "cistern.transfer.d2d",
	transfer.OpFill:        "cistern.transfer.fill",
	transfer.OpBatch:       "cistern.transfer.batch",
	transfer.OpLaunch:      "cistern.transfer.launch",
	transfer.OpPinnedAlloc: "cistern.pinned.alloc",
	transfer.OpPinnedFree:  "cistern.pinned.free",
	transfer.OpRegister:    "cistern.pinned.register",
	transfer.OpUnregister:  "cistern.pinned.unregister",
	transfer.OpNext:        "cistern.loader.next",
}

// Transfer returns the observer for [transfer.Config]; nil for a nil Tracer. One observer serves
// any number of pools. The span of a copy lasts until the device has finished the copy.
func (t *Tracer) Transfer() transfer.Observer {
	if t.off() {
		return nil
	}
	return transferObserver{t}
}

type transferObserver struct{ tracer *Tracer }

// Start makes a span if [Tracer.detail] allows it, and measures a copy if a reader uses that.
func (o transferObserver) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	if int(op) >= len(transferSpans) {
		return ctx, nil
	}
	if !op.Queued() { // copies end on another goroutine
		if r := region(ctx, transferSpans[op]); r != nil {
			ctx, run := o.start(ctx, op)
			return ctx, transferRegion{r, run}
		}
	}
	return o.start(ctx, op)
}

func (o transferObserver) start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	if op.Queued() && !o.tracer.silent() {
		if a := transfer.AheadOf(ctx); a != nil {
			return ctx, o.startAhead(a, op)
		}
	}
	return o.begin(ctx, op)
}

// begin starts an operation in ctx.
func (o transferObserver) begin(ctx context.Context, op transfer.Op, options ...oteltrace.SpanStartOption) (context.Context, transfer.Operation) {
	var step *Step
	if op == transfer.OpNext {
		step = o.tracer.stepThatWaits(ctx)
	}
	ctx, detail := o.tracer.detail(ctx, Slow)
	spans := detail >= Slow
	timed := op.Queued() && o.tracer.copyDuration.enabled(ctx)
	if !spans && !timed && step == nil {
		return ctx, nil
	}
	run := &transferOperation{tracer: o.tracer, step: step}
	if spans {
		ctx, run.span = o.tracer.start(ctx, transferSpans[op], options...)
	}
	if timed {
		run.ctx = ctx
	}
	return ctx, run
}

type transferOperation struct {
	tracer *Tracer
	span   oteltrace.Span  // nil: none
	ctx    context.Context // nil: not timed
	step   *Step           // that waits for data; nil: none
}

// End sets the span's attributes and ends it at the time of the event, which may be earlier than
// the call.
func (o *transferOperation) End(e transfer.OpInfo) {
	if o.ctx != nil && !e.Done.IsZero() {
		o.tracer.copyDuration.record(o.ctx, e.Done.Sub(e.Queued), durationKey{device: e.Device, label: e.Op.String()}, e.Err)
	}
	o.step.waitedForData(o.tracer, e.Waited)
	if o.span == nil {
		return
	}
	if o.span.IsRecording() {
		attributes := make([]attribute.KeyValue, 0, 9)
		attributes = append(attributes, KeyDevice.String(e.Device))
		switch {
		case e.Op.Queued():
			attributes = append(attributes, KeyOperation.String(e.Op.String()), KeyStream.Int64(int64(e.Stream)),
				KeySerial.Int64(int64(e.Serial)), KeyCopyBytes.Int64(e.Bytes))
			if e.Op <= transfer.OpD2D {
				attributes = append(attributes, KeyDirection.String(e.Op.String()))
			}
			if e.Busy > 0 {
				attributes = append(attributes, KeyCopyQueued.Float64((e.Done.Sub(e.Queued) - e.Busy).Seconds()),
					KeyBandwidth.Float64(float64(e.Bytes)/e.Busy.Seconds()))
			}
		case e.Op == transfer.OpNext:
			attributes = append(attributes, KeyCopyBytes.Int64(e.Bytes), KeyWaited.Float64(e.Waited.Seconds()))
		default:
			attributes = append(attributes, KeyPinnedBytes.Int64(e.Bytes))
		}
		o.span.SetAttributes(attributes...)
	}
	var options []oteltrace.SpanEndOption
	if !e.Done.IsZero() {
		options = []oteltrace.SpanEndOption{oteltrace.WithTimestamp(e.Done)}
	}
	o.tracer.end(o.span, e.Err, options...)
}
