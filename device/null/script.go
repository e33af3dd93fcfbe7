package null

import (
	"context"

	"github.com/cistern-ml/cistern/device"
)

// Op is a kind of call that a script sees.
type Op uint8

// The calls that a script sees: those that would reach a driver, and waits that have something to wait for.
const (
	OpAlloc Op = iota
	OpFree
	OpReserve
	OpUnreserve
	OpMap
	OpUnmap
	OpSynchronize // of an event, a stream, or a device, for each stream that is not done
)

// String is the operation's name in lower case.
func (op Op) String() string {
	names := [...]string{"alloc", "free", "reserve", "unreserve", "map", "unmap", "synchronize"}
	if int(op) < len(names) {
		return names[op]
	}
	return "unknown"
}

// Call is one call of the device, with good arguments.
type Call struct {
	Op Op
	// Ptr is the address: the caller's or, of Alloc and Reserve, 0 before the call, when the script may choose
	// one. A chosen address that overlaps what is live is an error of the call.
	Ptr device.Ptr
	// Bytes is the size; of Free and Unreserve, that of what is freed.
	Bytes int64
	// Stream is the ID of the stream that a wait is for, and Context the wait's own.
	Stream  uint64
	Context context.Context
	// Err, set by the script before the call, makes the call fail with it and change nothing.
	Err error
}

// Script is told of the device's calls, on the goroutine of the call and without locks: it may block, and
// use the device. Calls from several goroutines reach it concurrently.
type Script struct {
	// Before is called before each call and may change it; nil: nothing.
	Before func(*Call)
	// After is called after each call that succeeded; nil: nothing.
	After func(Call)
}

// SetScript replaces the device's script. Calls that run keep the earlier one.
func (d *Device) SetScript(s Script) { d.script.Store(&s) }

// FailNext replaces the device's script by one that lets the next n calls of Alloc and Map fail as if the
// device had no memory left.
func (d *Device) FailNext(n int) {
	d.SetScript(Script{Before: func(c *Call) {
		if n > 0 && (c.Op == OpAlloc || c.Op == OpMap) {
			n--
			c.Err = d.outOfMemory(c.Op.name(), c.Bytes, 0)
		}
	}})
}

// name is the device's method.
func (op Op) name() string {
	return [...]string{"Alloc", "Free", "Reserve", "Unreserve", "Map", "Unmap", "Synchronize"}[op]
}

// do runs a call between the two parts of the script. run is called with mu held, and may change the call.
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
