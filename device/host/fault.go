package host

import (
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// Fault is a kind of call that [Device.Fail] makes fail.
type Fault uint8

// The kinds of calls that can be made to fail, each as it fails on a GPU.
const (
	// FaultAlloc: Alloc returns an error that wraps [device.ErrOutOfMemory]; nothing else happens.
	FaultAlloc Fault = iota
	// FaultPinned is the same of AllocPinned.
	FaultPinned
	// FaultMap is the same of Map.
	FaultMap
	// FaultCopy: a copy returns nil, but when its turn comes the device gets the sticky error
	// [device.CodeIllegalAddress]. Each copy counts as one, a batch too.
	FaultCopy
	// FaultLaunch: a Launch returns nil, but instead of running its kernel the device gets the sticky error
	// [device.CodeLaunchFailed].
	FaultLaunch
	faults
)

// Fail makes the n-th call of kind f from now on fail, and no other: n = 1 is the next. Calls that are refused
// for their arguments don't count. n <= 0 takes the fault back.
func (d *Device) Fail(f Fault, n int) {
	if f < faults {
		race.Disable()
		d.fault[f].Store(int64(max(n, 0)))
		race.Enable()
	}
}

// fails counts a call of kind f and reports whether it is the one to fail.
//
//go:norace
func (d *Device) fails(f Fault) bool {
	race.Disable()
	c := &d.fault[f]
	n := c.Load()
	for n > 0 && !c.CompareAndSwap(n, n-1) {
		n = c.Load()
	}
	race.Enable()
	return n == 1
}

// stick gives the device its sticky error, unless it has one.
//
//go:norace
func (d *Device) stick(err *device.Error) {
	race.ReleaseMerge(unsafe.Pointer(err))
	race.Disable()
	d.sticky.CompareAndSwap(nil, err)
	race.Enable()
}

// stuck is the sticky error, or nil. Whoever sees it has an edge from what raised it.
//
//go:norace
func (d *Device) stuck() *device.Error {
	race.Disable()
	err := d.sticky.Load()
	race.Enable()
	if err != nil {
		race.Acquire(unsafe.Pointer(err))
	}
	return err
}

// stuckError is stuck as an error.
func (d *Device) stuckError() error {
	if err := d.stuck(); err != nil {
		return err
	}
	return nil
}

// counters of calls left until one fails; 0: none does.
type faultCounters [faults]atomic.Int64
