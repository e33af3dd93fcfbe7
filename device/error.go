package device

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
)

// Classes of errors, for use with errors.Is.
var (
	// ErrOutOfMemory: the device has too little free memory. Nothing changed; a smaller request may
	// succeed.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrClosed: the device, stream or event is closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument is wrong. Nothing changed. The ErrInvalid of every other package of
	// this module is this same value, so that errors.Is recognizes a wrong argument whichever layer
	// found it.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotPinned: the host memory of a copy is neither pinned nor registered.
	ErrNotPinned = errors.New("host memory is not pinned")
	// ErrNoBackend: no backend of that name is built into the program.
	ErrNoBackend = errors.New("no such backend")
	// ErrNoDevice: the backend is built in, but the machine has no such device, or no driver for
	// it.
	ErrNoDevice = errors.New("no such device")
	// ErrUnsupported: the device, its driver or one of its libraries lacks the feature.
	ErrUnsupported = errors.New("not supported")
	// ErrCapturing: the call is not possible while a stream is captured, or on something that was
	// captured ([GraphCapturer]). Nothing was queued, and the capture continues.
	ErrCapturing = errors.New("not possible in a capture")
	// ErrSticky: work on the device failed; the device can only be closed.
	ErrSticky = errors.New("device is unusable after an earlier error")
)

// CUDA's codes of the errors that every backend returns (CUresult).
const (
	CodeInvalidValue   = 1
	CodeOutOfMemory    = 2
	CodeDeinitialized  = 4
	CodeIllegalAddress = 700
	CodeLaunchFailed   = 719
)

// Error is a failed call to a device.
type Error struct {
	Op     string // the call: "Alloc", "CopyH2D", ...
	Device string // the device's name
	Bytes  int64  // the bytes that the call concerned, or 0
	Code   int    // the driver's code; the host device uses CUDA's
	Detail string // what is wrong, and what would be right
	Err    error  // the class: one of the Err variables, or the driver's own error
}

// Error returns "device: CALL of BYTES on DEVICE: CLASS (CODE): DETAIL".
func (e *Error) Error() string {
	s := "device: " + e.Op
	if e.Bytes > 0 {
		s += " of " + humanize.IBytes(uint64(e.Bytes))
	}
	s += fmt.Sprintf(" on %s: %v", e.Device, e.Err)
	if e.Code != 0 {
		s += fmt.Sprintf(" (code %d)", e.Code)
	}
	if e.Detail != "" {
		s += ": " + e.Detail
	}
	return s
}

// Unwrap returns the class.
func (e *Error) Unwrap() error { return e.Err }
