package trace

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// recordError sets the status Error and the error's class on a span.
func recordError(span oteltrace.Span, err error) {
	span.SetStatus(codes.Error, err.Error())
	span.SetAttributes(errorType(err))
}

// errorType returns the attribute error.type: the class that a caller would test for, or else the
// error's Go type.
func errorType(err error) attribute.KeyValue {
	for _, class := range []struct {
		err  error
		name string
	}{
		{memcache.ErrOutOfMemory, "out_of_memory"},
		{device.ErrOutOfMemory, "out_of_memory"},
		{device.ErrTimeout, "timeout"},
		{device.ErrMismatch, "mismatch"},
		{device.ErrAborted, "aborted"},
		{context.Canceled, "canceled"},
		{context.DeadlineExceeded, "deadline_exceeded"},
		{memcache.ErrFreed, "freed"},
		{memcache.ErrClosed, "closed"},
		{device.ErrClosed, "closed"},
		{transfer.ErrRange, "out_of_range"},
		{device.ErrInvalid, "invalid"},
		{transfer.ErrClosed, "closed"},
		{transfer.ErrInFlight, "in_flight"},
		{transfer.ErrReleased, "released"},
		{device.ErrNotPinned, "not_pinned"},
		{device.ErrSticky, "sticky"},
		{errPanicked, "panic"},
	} {
		if errors.Is(err, class.err) {
			return semconv.ErrorTypeKey.String(class.name)
		}
	}
	return semconv.ErrorType(err)
}

// errPanicked is the class of a step's failure by a panic.
var errPanicked = errors.New("the step panicked")

// ErrInvalid is the class of errors about wrong arguments, for errors.Is. It is
// [device.ErrInvalid]. The call changed nothing.
var ErrInvalid = device.ErrInvalid
