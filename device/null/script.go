package null

import (
	"context"

	"github.com/cistern-ml/cistern/device"
)

// Op is a kind of call that a script sees.
type Op uint8

// The calls that a script sees: those that would reach a driver, and waits that are not over at
// once.
const (
	OpAlloc Op = iota
	OpFree
	OpReserve
	OpUnreserve
	OpMap
	OpUnmap
	// OpSynchronize waits for an event, a stream or a device. For a device the script sees one call
	// for each stream that is not done.
	OpSynchronize
)

// String returns the operation's name in lower case.
func (op Op) String() string {
	names := [...]string{"alloc", "free", "reserve", "unreserve", "map", "unmap", "synchronize"}
	if int(op) < len(names) {
		return names[op]
	}
	return "unknown"
}

// Call is one call of the device. Its arguments are valid.
type Call struct {
	Op Op
	// Ptr is the address. Alloc and Reserve pass 0 to Before, which may choose an address; if that
	// overlaps a live range, the call fails.
	Ptr device.Ptr
	// Bytes is the size; for Free and Unreserve it is the size of the freed range.
	Bytes int64
	// Stream is the ID of the stream that a wait is for, and Context is the wait's context.
	Stream  uint64
	Context context.Context
	// Err, if Before sets it, is the call's error; the call then changes nothing.
	Err error
}

// Script observes the device's calls. Its functions run on the goroutine of the call and without
// locks, so they may block and use the device. Calls from several goroutines reach them
// concurrently.
type Script struct {
	// Before, if not nil, is called before each call and may change it.
	Before func(*Call)
	// After, if not nil, is called after each call that succeeded.
	After func(Call)
}

// SetScript replaces the device's script. Calls in progress keep the earlier one.
func (d *Device) SetScript(s Script) { d.script.Store(&s) }

// FailNext replaces the device's script by one that makes the next n calls of Alloc and Map fail as
// if the device had no free memory.
func (d *Device) FailNext(n int) {
	d.SetScript(Script{Before: func(c *Call) {
		if n > 0 && (c.Op == OpAlloc || c.Op == OpMap) {
			n--
			c.Err = d.outOfMemory(c.Op.name(), c.Bytes, 0)
		}
	}})
}

// name returns the name of the device's method.
func (op Op) name() string {
	return [...]string{"Alloc", "Free", "Reserve", "Unreserve", "Map", "Unmap", "Synchronize"}[op]
}

// do runs a call between the two functions of the script. It calls run with mu held; run may change
// the call.
func (d *Device) do(c Call, run func(*Call) error) (Call, error) {
	s := d.script.Load()
	if s.Before != nil {
		s.Before(&c)
		if c.Err != nil {
			return c, c.Err
		}
	}
	d.mu.Lock()
	var err error
	if d.forgotten {
		err = d.usable(c.Op.name())
	} else {
		err = run(&c)
	}
	d.mu.Unlock()
	if err == nil && s.After != nil {
		s.After(c)
	}
	return c, err
}
