package backend

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
)

// CUDA's codes of capture errors (CUresult).
const (
	CodeIllegalState       = 401
	CodeCaptureUnsupported = 900
	CodeCaptureInvalidated = 901
	CodeCaptureMerge       = 902
	CodeCaptureUnmatched   = 903
	CodeCaptureUnjoined    = 904
	CodeCaptureIsolation   = 905
	CodeCapturedEvent      = 907
	CodeCaptureWrongThread = 908
	CodeGraphUpdateFailed  = 910
)

func (s Self) capturing(op string, code int, format string, args ...any) error {
	return &device.Error{Op: op, Device: string(s), Code: code, Detail: fmt.Sprintf(format, args...), Err: device.ErrCapturing}
}

// Capturing returns the error of a call on a stream that is captured.
func (s Self) Capturing(op string, stream uint64) error {
	return s.capturing(op, CodeCaptureUnsupported, "stream %d is captured; end the capture first", stream)
}

// DeviceCapturing returns the error of a call on a device with a captured stream.
func (s Self) DeviceCapturing(op string, stream uint64) error {
	return s.capturing(op, CodeCaptureUnsupported, "stream %d of the device is captured; end the capture first, or wait for a stream or an event",
		stream)
}

// NotCapturing returns the error of EndCapture on a stream that is not captured.
func (s Self) NotCapturing(stream uint64) error {
	return &device.Error{Op: "EndCapture", Device: string(s), Code: CodeIllegalState, Err: device.ErrInvalid,
		Detail: fmt.Sprintf("no capture has begun on stream %d", stream)}
}

// Unmatched returns the error of EndCapture on a stream that joined the capture.
func (s Self) Unmatched(stream, origin uint64) error {
	return s.capturing("EndCapture", CodeCaptureUnmatched, "stream %d joined the capture that began on stream %d; end it there", stream, origin)
}

// Unjoined returns the error of EndCapture if the first stream did not wait for all work of another
// one.
func (s Self) Unjoined(stream, origin uint64, operations int) error {
	return s.capturing("EndCapture", CodeCaptureUnjoined,
		"stream %d did not wait for the last %d operations of stream %d; record an event there and wait for it, before EndCapture", origin, operations, stream)
}

// CaptureEnded returns the error of an operation whose capture another goroutine has ended
// meanwhile.
func (s Self) CaptureEnded(op string, stream uint64) error {
	return s.capturing(op, CodeCaptureInvalidated, "the capture of stream %d was ended meanwhile", stream)
}

// CapturedEvent returns the error of using an event that was last recorded in a capture.
func (s Self) CapturedEvent(op string) error {
	return s.capturing(op, CodeCapturedEvent, "the event was last recorded in a capture, where it only orders what is captured; record it again")
}

// Isolated returns the error of a captured stream's wait for an event that was not captured.
func (s Self) Isolated(stream uint64) error {
	return s.capturing("Wait", CodeCaptureIsolation, "the event was not recorded in the capture of stream %d; wait for it before BeginCapture", stream)
}

// Merged returns the error of a wait that would merge two captures.
func (s Self) Merged(stream uint64) error {
	return s.capturing("Wait", CodeCaptureMerge, "the event was recorded in another capture than that of stream %d", stream)
}

// OtherDevices returns the error of a wait by which another device's stream would join.
func (s Self) OtherDevices(stream uint64) error {
	return s.capturing("Wait", CodeCaptureIsolation, "stream %d is of another device than the capture in which the event was recorded", stream)
}

var errUnpinnedCapture = fmt.Errorf("%w: %w", device.ErrCapturing, device.ErrNotPinned)

// InCapture turns the error of an operation in a capture into the error to return: memory that is
// not pinned is then also an error that wraps ErrCapturing.
func (s Self) InCapture(err error) error {
	var e *device.Error
	if errors.As(err, &e) && e.Err == device.ErrNotPinned {
		e.Err = errUnpinnedCapture
	}
	return err
}

// Held returns the error of freeing memory that a graph uses.
func (s Self) Held(op string, bytes int64) error {
	return s.Invalid(op, bytes, "a graph or a capture uses the memory; close the graph first")
}

// GraphClosed returns the error of a call on a closed graph.
func (s Self) GraphClosed(op string) error {
	return &device.Error{Op: op, Device: string(s), Code: CodeInvalidHandle, Detail: "the graph", Err: device.ErrClosed}
}

// NotOurs returns the error of using another device's stream or graph; what is "stream" or "graph".
func (s Self) NotOurs(op, what string) error {
	return s.Invalid(op, 0, "the %s is not one of this device", what)
}

// GraphDiffers returns the error of an Update with a graph of other operations.
func (s Self) GraphDiffers(format string, args ...any) error {
	return &device.Error{Op: "Update", Device: string(s), Code: CodeGraphUpdateFailed, Err: device.ErrInvalid, Detail: fmt.Sprintf(format, args...)}
}
