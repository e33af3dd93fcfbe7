package compose

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/memcache"
)

// fault is what fails in a trial.
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
		m.dev.Fail(kind, at)
	}
	m.launched = func() {
		if at--; at == 0 && f == contextFault {
			cancel()
		}
	}
	return ctx
}

// disarm takes the fault back.
func (m *machine) disarm() {
	m.launched = func() {}
	for f := range host.FaultLaunch + 1 {
		m.dev.Fail(f, 0)
	}
}

// checkFault lets a trial fail on the first machine. The error has the fault as its cause, nothing is left, a step that has failed can be taken
// again, and the training runs on the same machines then.
func checkFault(machines []*machine, tr *trial) (reached bool, err error) {
	want, err := tr.plain().train(context.Background(), machines[0], nil, never)
	if err != nil {
		return false, fmt.Errorf("the plain training: %w", err)
	}
	again := func(err error) bool { return !tr.fault.sticky() && !tr.has(ranks) && tr.fault.explains(err) }
	first := func(m *machine, comm device.Communicator) error {
		ctx := context.Background()
		if m == machines[0] {
			if err := m.pool.EmptyCache(ctx); err != nil { // which may need pinned memory again
				return err
			}
			ctx = m.arm(tr.fault, tr.at)
		}
		got, err := tr.train(ctx, m, comm, again)
		m.disarm()
		reached = reached || m == machines[0] && (err != nil || got.failed != nil)
		switch {
		case m != machines[0] && (err != nil || tr.fault.sticky()): // what came from the first rank is undefined
			err = nil
		case err == nil && (got.failed == nil || !tr.moves()):
			err = differ(want, got)
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
	}
	if tr.has(ranks) {
		err = together(machines, first)
	} else {
		err = first(machines[0], nil)
	}
	if err != nil || tr.fault.sticky() {
		return reached, err
	}
	if err = check(machines, tr); err != nil {
		err = fmt.Errorf("after the fault: %w", err)
	}
	return reached, err
}
