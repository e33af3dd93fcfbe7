package device

import (
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
)

// Classes of errors, for errors.Is.
var (
	// ErrOutOfMemory: the device has too little free memory. Nothing changed; less may fit.
	ErrOutOfMemory = errors.New("out of memory")
	// ErrClosed: the device, stream or event is closed.
	ErrClosed = errors.New("closed")
	// ErrInvalid: an argument is wrong. Nothing changed. It is the class of every package of this module: their
	// ErrInvalid are this one, so that errors.Is tells a wrong argument whatever layer found it.
	ErrInvalid = errors.New("invalid argument")
	// ErrNotPinned: the host memory of a copy is neither pinned nor registered.
	ErrNotPinned = errors.New("host memory is not pinned")
	// ErrNoBackend: no backend of that name is built into the program.
	ErrNoBackend = errors.New("no such backend")
	// ErrNoDevice: the backend is built in, but the machine has no such device, or no driver for it.
	ErrNoDevice = errors.New("no such device")
	// ErrUnsupported: the device, its driver or a library of its lacks the feature.
	ErrUnsupported = errors.New("not supported")
	// ErrCapturing: the call is not possible while a stream is captured, or on what was captured ([GraphCapturer]). Nothing was
	// queued, and the capture goes on.
	ErrCapturing = errors.New("not possible in a capture")
	// ErrSticky: work on the device failed; the device can only be closed.
	ErrSticky = errors.New("device is unusable after an earlier error")
)

// CUDA's codes of the errors that every backend gives (CUresult).
const (
	CodeInvalidValue   = 1
	CodeOutOfMemory    = 2
	CodeDeinitialized  = 4
	CodeIllegalAddress = 700
	CodeLaunchFailed   = 719
)

// Error is a failed call of a device.
type Error struct {
	Op     string // the call: "Alloc", "CopyH2D", ...
	Device string // the device's name
	Bytes  int64  // the bytes the call was about; 0: none
	Code   int    // the driver's code; the host device gives the code that CUDA would give
	Detail string // what was wrong, and what would be right
	Err    error  // the class: one of the Err variables, or the driver's own error
}

// Error is "device: CALL of BYTES on DEVICE: CLASS (CODE): DETAIL".
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
