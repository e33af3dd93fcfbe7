package host

import (
	"sync/atomic"
	"unsafe"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// Fault is a kind of call that [Device.Fail] makes fail.
type Fault uint8

// The kinds of calls that can be made to fail. Each fails as it does on a GPU.
const (
	// FaultAlloc: Alloc returns an error that wraps [device.ErrOutOfMemory]; nothing else happens.
	FaultAlloc Fault = iota
	// FaultPinned does the same for AllocPinned.
	FaultPinned
	// FaultMap does the same for Map.
	FaultMap
	// FaultCopy: a copy returns nil, but when it should run the device gets the sticky error
	// [device.CodeIllegalAddress] instead. A batch counts as one copy.
	FaultCopy
	// FaultLaunch: a Launch returns nil, but when the kernel should run the device gets the sticky
	// error [device.CodeLaunchFailed] instead.
	FaultLaunch
	faults
)

// Fail makes the n-th call of kind f from now on fail, and no other: n = 1 is the next. Calls that
// are refused for their arguments don't count. n <= 0 cancels an earlier Fail of that kind.
func (d *Device) Fail(f Fault, n int) {
	if f < faults {
		race.Disable()
		d.fault[f].Store(int64(max(n, 0)))
		race.Enable()
	}
}

// fails counts a call of kind f and reports whether this call must fail.
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

// stick sets the device's sticky error unless it has one.
//
//go:norace
func (d *Device) stick(err *device.Error) {
	race.ReleaseMerge(unsafe.Pointer(err))
	race.Disable()
	d.sticky.CompareAndSwap(nil, err)
	race.Enable()
}

// stuck returns the sticky error, or nil. It adds an edge from the operation that raised the error.
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

// stuckError returns stuck as an error, without a nil pointer in the interface.
func (d *Device) stuckError() error {
	if err := d.stuck(); err != nil {
		return err
	}
	return nil
}

// faultCounters counts down the calls of each kind until one fails; 0 means that none does.
type faultCounters [faults]atomic.Int64
