package compose

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

// fault is the kind of failure in a trial.
type fault int

const (
	noFault fault = iota
	allocFault
	pinnedFault
	contextFault // the context ends
	kernelFault  // the device has a sticky error then, as after copyFault
	copyFault
	faults
)

var faultNames = []string{"none", "alloc", "pinned", "context", "kernel", "copy"}

func (f fault) String() string { return faultNames[f] }

func (f fault) sticky() bool { return f >= kernelFault }

// explains reports whether the fault is the cause of err.
func (f fault) explains(err error) bool {
	switch f {
	case allocFault, pinnedFault:
		return errors.Is(err, memcache.ErrOutOfMemory) || errors.Is(err, device.ErrOutOfMemory)
	case contextFault:
		return errors.Is(err, context.Canceled)
	case kernelFault, copyFault:
		return errors.Is(err, device.ErrSticky)
	}
	return false
}

// arm lets the at-th call from now on fail: an allocation, or a copy, or a launch.
func (m *machine) arm(f fault, at int) context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	kinds := map[fault]host.Fault{allocFault: host.FaultAlloc, pinnedFault: host.FaultPinned, kernelFault: host.FaultLaunch, copyFault: host.FaultCopy}
	if kind, ok := kinds[f]; ok {
		m.dev.(*host.Device).Fail(kind, at)
	}
	m.launched = func() {
		if at--; at == 0 && f == contextFault {
			cancel()
		}
	}
	return ctx
}

// pinnedFailures returns how often the driver had no pinned memory. The pool and offloaders then
// try again.
func (m *machine) pinnedFailures() int64 {
	s := m.pool.Stats()
	return s.HostAllocs - s.Allocations.Allocated
}

// disarm removes the fault.
func (m *machine) disarm() {
	m.launched = func() {}
	for f := range host.FaultLaunch + 1 {
		m.dev.(*host.Device).Fail(f, 0)
	}
}

// checkFault lets a trial fail on the first machine. The error has the fault as its cause, nothing
// leaks, a step that has failed can be repeated, and the training then runs on the same machines.
func checkFault(machines []*machine, tr *trial) (reached bool, err error) {
	want, err := tr.plain(machines)
	if err != nil {
		return false, err
	}
	if err := machines[0].pool.EmptyCache(context.Background()); err != nil { // so that pinned memory is needed again
		return false, err
	}
	if !tr.has(ranks) {
		machines = machines[:1]
	}
	err = together(machines, func(i int, comm device.Communicator) error {
		m, ctx := machines[i], context.Background()
		before := m.pinnedFailures()
		if i == 0 {
			ctx = m.arm(tr.fault, tr.at)
			defer m.disarm()
		}
		got, err := tr.train(ctx, m, comm, func(err error) bool { return !tr.fault.sticky() && !tr.has(ranks) && tr.fault.explains(err) })
		if i == 0 {
			reached = err != nil || got.failed != nil || m.pinnedFailures() > before
		}
		switch {
		case i > 0 && (err != nil || tr.fault.sticky()): // data from the first rank is undefined
			err = nil
		case err == nil && (got.failed == nil || !tr.moves()):
			err = differ(want[min(i, len(want)-1)], got)
		case err == nil:
		case got.failed != nil:
			err = fmt.Errorf("after %w, the step that was taken again: %w", got.failed, err)
		case tr.fault.explains(err):
			err = nil
		}
		if tr.fault.sticky() {
			return err
		}
		return errors.Join(err, m.left())
	})
	if err != nil || tr.fault.sticky() {
		return reached, err
	}
	if err = tr.against(want, machines); err != nil {
		err = fmt.Errorf("after the fault: %w", err)
	}
	return reached, err
}
