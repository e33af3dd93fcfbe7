//go:build cuda

package cuda

// #include "shim.h"
// #include <stdlib.h>
import "C"

import (
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
)

// nccl is an open library. It has its own threads, so it is never closed.
type nccl struct {
	once sync.Once
	err  string
	lib  C.cistern_nccl
}

// ncclLibraries holds the open libraries by path, because the communicators of one world must share
// one.
var ncclLibraries sync.Map // of *nccl

// ncclBlocking is a variable by which NCCL overrides its callers.
const ncclBlocking = "NCCL_COMM_BLOCKING"

// openNCCL opens NCCL unless it is open.
func (d *Device) openNCCL(op string) (*nccl, error) {
	if d.nccl == without {
		return nil, &device.Error{Op: op, Device: d.name, Err: device.ErrUnsupported, Detail: "the device was opened with nccl=none"}
	}
	if os.Getenv(ncclBlocking) != "" {
		return nil, &device.Error{Op: op, Device: d.name, Err: device.ErrUnsupported,
			Detail: "NCCL applies " + ncclBlocking + " to all communicators, but joining needs one that does not block, and operations one that does; unset it"}
	}
	x, _ := ncclLibraries.LoadOrStore(d.nccl, &nccl{})
	l := x.(*nccl)
	l.once.Do(func() {
		path := C.CString(d.nccl)
		defer C.free(unsafe.Pointer(path))
		var problem [512]C.char
		if C.cistern_nccl_open(path, &l.lib, &problem[0], C.int(len(problem))) == 0 {
			l.err = "NCCL can't be used: " + C.GoString(&problem[0])
		}
	})
	if l.err != "" {
		return nil, &device.Error{Op: op, Device: d.name, Err: device.ErrUnsupported, Detail: l.err}
	}
	return l, nil
}

// The codes of NCCL that this package handles (ncclResult_t).
const (
	ncclInvalidArgument = 4
	ncclInvalidUsage    = 5
	ncclInProgress      = C.cistern_nccl_in_progress
)

// explain returns NCCL's description of a code, and the class of the error that ends the
// communicator.
func (l *nccl) explain(comm C.uint64_t, code C.int) (string, error) {
	if code > 0 {
		return nameOf(int(code)), device.ErrAborted
	}
	var message [256]C.char
	C.cistern_nccl_message(&l.lib, comm, &message[0], C.int(len(message)))
	names := [...]string{1: "ncclUnhandledCudaError", 2: "ncclSystemError", 3: "ncclInternalError", 4: "ncclInvalidArgument", 5: "ncclInvalidUsage", 6: "ncclRemoteError"}
	name := "an unknown error"
	if n := int(-code); n < len(names) {
		name = names[n]
	}
	text := fmt.Sprintf("NCCL %d.%d.%d: %s (%d)", l.lib.version/10000, l.lib.version/100%100, l.lib.version%100, name, -code)
	if m := C.GoString(&message[0]); m != "" {
		text += ": " + m
	}
	if -code == ncclInvalidArgument || -code == ncclInvalidUsage {
		return text, device.ErrInvalid
	}
	return text, device.ErrAborted
}

// NewCommunicatorID opens a port of this process for the other ranks. NCCL_SOCKET_IFNAME selects
// the interface.
func (d *Device) NewCommunicatorID() (device.CommunicatorID, error) {
	const op = "NewCommunicatorID"
	var id device.CommunicatorID
	if err := d.enter(op); err != nil {
		return id, err
	}
	defer d.gate.Leave()
	l, err := d.openNCCL(op)
	if err != nil {
		return id, err
	}
	var unique C.cistern_nccl_id
	if code := C.cistern_nccl_get_id(&l.lib, &unique); code != 0 {
		text, _ := l.explain(0, code)
		return id, &device.Error{Op: op, Device: d.name, Code: int(-code), Err: device.ErrUnsupported, Detail: text}
	}
	return *(*device.CommunicatorID)(unsafe.Pointer(&unique)), nil
}

// finalize runs ncclCommFinalize for a handle. well reports success; left reports whether NCCL has
// returned. If it has not, the handle must not be used any more.
func (l *nccl) finalize(d *Device, handle C.uint64_t) (well, left bool) {
	if d.stuck.Load() != nil {
		return false, false
	}
	ended := make(chan C.int, 1)
	go func() { ended <- C.cistern_nccl_finalize(d.c, &l.lib, handle) }()
	deadline := time.NewTimer(finalizing)
	defer deadline.Stop()
	code := C.int(0)
	select {
	case code = <-ended:
	case <-deadline.C:
		return false, false
	}
	// A handle that does not block returns before it is done.
	for pause := shortPause; -code == ncclInProgress; pause = min(2*pause, longestPause) {
		select {
		case <-deadline.C:
			return false, true
		case <-time.After(pause):
		}
		code = C.cistern_nccl_state(&l.lib, handle)
	}
	return code == 0, true
}

// discard destroys a handle, and reports whether NCCL has finished. With a lost context it does
// nothing, because the handle is lost anyway and NCCL might wait for its work.
func (l *nccl) discard(d *Device, handle C.uint64_t, inPeace bool) bool {
	switch {
	case d.stuck.Load() != nil:
		return false
	case inPeace:
		C.cistern_nccl_destroy(d.c, &l.lib, handle)
		return true
	}
	gone := make(chan struct{})
	go func() {
		C.cistern_nccl_abort(d.c, &l.lib, handle)
		close(gone)
	}()
	select {
	case <-gone:
		return true
	case <-time.After(patience):
		return false
	}
}
