//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// ready returns the result of a query.
func (d *Device) ready(op string, code C.int) (bool, error) {
	if code == backend.CodeNotReady {
		return false, nil
	}
	err := d.check(op, 0, code)
	return err == nil, err
}

// await waits in the driver unless done returns true at once, and calls leave when the wait has
// ended.
//
// The driver's waits can't be cancelled. So with a context that can be cancelled, another goroutine
// waits. It stays in the driver until the work ends, occupies an operating system thread, and holds
// the gate until it calls leave, so that the object of the wait is not destroyed. A context that
// can't be cancelled has none of these costs.
func (d *Device) await(ctx context.Context, op string, leave func(), done func() (bool, error), wait func() error) error {
	if ctx == nil {
		leave()
		return d.self.NoContext(op)
	}
	ok, err := done()
	if ok || err != nil {
		leave()
		return err
	}
	if ctx.Done() == nil {
		defer leave()
		return wait()
	}
	if ctx.Err() != nil {
		leave()
		return d.cancelled(ctx, op)
	}
	result := make(chan error, 1)
	go func() {
		defer leave()
		result <- wait()
	}()
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
		return d.cancelled(ctx, op)
	}
}

func (d *Device) cancelled(ctx context.Context, op string) error {
	return &device.Error{Op: op, Device: d.name, Detail: "the work continues", Err: ctx.Err()}
}
