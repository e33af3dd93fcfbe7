//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"errors"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// The driver's codes that this package handles (CUresult).
const (
	codeSuccess       = 0
	codeNoDevice      = 100
	codeInvalidDevice = 101
	codeNoBinary      = 209
	codeNotFound      = 500
	codeAlreadyPinned = 712
	codeNotPermitted  = 800
	codeNotSupported  = 801
)

// sticky reports whether the error loses the context, so that no further work is possible.
func sticky(code int) bool {
	switch code {
	case 214, 220, 226, // ECC, NVLink, contained memory errors
		700, 702, 710, // illegal address, timeout, assertion
		714, 715, 716, 717, 718, 719, // stack, instruction, alignment, space, counter, launch
		721, 999:
		return true
	}
	return false
}

// check turns the driver's code into an error. The first sticky error stays the device's: every
// later call returns it instead of its own code, because consequences describe the cause less well.
func (d *Device) check(op string, bytes int64, code C.int) error {
	if code == codeSuccess {
		return nil
	}
	return d.fail(op, bytes, int(code))
}

func (d *Device) fail(op string, bytes int64, code int) error {
	e := &device.Error{Op: op, Device: d.name, Bytes: bytes, Code: code, Err: errors.New(nameOf(code))}
	switch {
	case sticky(code):
		e.Detail, e.Err = nameOf(code), device.ErrSticky
		d.stuck.CompareAndSwap(nil, e)
		return d.stuck.Load()
	case code == device.CodeOutOfMemory:
		e.Err = device.ErrOutOfMemory
	case code == device.CodeInvalidValue:
		e.Detail, e.Err = nameOf(code), device.ErrInvalid
	case code == codeNotSupported, code == codeNotPermitted, code == codeNotFound, code == codeNoBinary:
		e.Detail, e.Err = nameOf(code), device.ErrUnsupported
	case code >= backend.CodeCaptureUnsupported && code <= backend.CodeCaptureWrongThread:
		e.Detail, e.Err = nameOf(code), device.ErrCapturing
	case code == codeNoDevice, code == codeInvalidDevice:
		e.Detail, e.Err = nameOf(code), device.ErrNoDevice
	}
	return e
}

// nameOf returns the driver's name of a code, such as CUDA_ERROR_ILLEGAL_ADDRESS.
func nameOf(code int) string {
	var name [64]C.char
	C.cistern_error_name(C.int(code), &name[0], C.int(len(name)))
	return C.GoString(&name[0])
}

// stuckError returns the sticky error, or nil.
func (d *Device) stuckError() error {
	if e := d.stuck.Load(); e != nil {
		return e
	}
	return nil
}

// enter begins a call that needs the device. The caller must leave d.gate.
func (d *Device) enter(op string) error {
	if !d.gate.Enter() {
		return d.self.Closed(op)
	}
	if err := d.stuckError(); err != nil {
		d.gate.Leave()
		return err
	}
	return nil
}

func address(b []byte) uint64 { return uint64(uintptr(unsafe.Pointer(unsafe.SliceData(b)))) }
