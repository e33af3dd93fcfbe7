package backend

import (
	"fmt"

	"github.com/dustin/go-humanize"

	"github.com/cistern-ml/cistern/device"
)

// CUDA's codes of errors that no other package names (CUresult).
const (
	CodeInvalidHandle = 400 // a closed stream or event
	CodeNotReady      = 600 // an event that is not complete
)

// Self is a device's name, for its errors. The methods make the errors that all backends share; op
// is the failed call.
type Self string

// Invalid returns the error of a wrong argument. It leaves out bytes if they are negative.
func (s Self) Invalid(op string, bytes int64, format string, args ...any) error {
	return &device.Error{Op: op, Device: string(s), Bytes: max(bytes, 0), Code: device.CodeInvalidValue,
		Detail: fmt.Sprintf(format, args...), Err: device.ErrInvalid}
}

// Closed returns the error of a call on a closed device.
func (s Self) Closed(op string) error {
	return &device.Error{Op: op, Device: string(s), Code: device.CodeDeinitialized, Detail: "open another device",
		Err: device.ErrClosed}
}

// StreamClosed returns the error of a call on a closed stream.
func (s Self) StreamClosed(op string, id uint64) error {
	return &device.Error{Op: op, Device: string(s), Code: CodeInvalidHandle, Detail: fmt.Sprintf("stream %d", id),
		Err: device.ErrClosed}
}

// EventClosed returns the error of a call on a closed event.
func (s Self) EventClosed(op string) error {
	return &device.Error{Op: op, Device: string(s), Code: CodeInvalidHandle, Detail: "the event", Err: device.ErrClosed}
}

// CommunicatorClosed returns the error of a call on a closed communicator.
func (s Self) CommunicatorClosed(op string, rank, size int) error {
	return &device.Error{Op: op, Device: string(s), Code: CodeInvalidHandle, Detail: fmt.Sprintf("the communicator of rank %d of %d", rank, size), Err: device.ErrClosed}
}

// NoContext returns the error of a nil context.
func (s Self) NoContext(op string) error {
	return s.Invalid(op, 0, "the context is nil; use context.Background()")
}

// NoFunction returns the error of a nil function for OnDone.
func (s Self) NoFunction() error { return s.Invalid("OnDone", 0, "the function is nil") }

// BadSize returns the error of a size that is not positive.
func (s Self) BadSize(op string, bytes int64) error {
	return s.Invalid(op, bytes, "%d bytes; the size must be positive", bytes)
}

// OutOfMemory returns the error of a failed allocation, with the free bytes and the total.
func (s Self) OutOfMemory(op string, bytes, free, total int64) error {
	return &device.Error{Op: op, Device: string(s), Bytes: bytes, Code: device.CodeOutOfMemory, Err: device.ErrOutOfMemory,
		Detail: fmt.Sprintf("asked for %d bytes, %d of %d are free (%s of %s)", bytes, free, total,
			humanize.IBytes(uint64(free)), humanize.IBytes(uint64(total)))}
}
