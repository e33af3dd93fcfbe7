//go:build cuda

package cuda

// #include "shim.h"
import "C"

import (
	"context"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/internal/backend"
)

// ready reads the answer of a query.
func (d *Device) ready(op string, code C.int) (bool, error) {
	if code == backend.CodeNotReady {
		return false, nil
	}
	err := d.check(op, 0, code)
	return err == nil, err
}

// await waits in the driver, unless done is at once, and calls leave when nobody waits any more.
//
// The driver's waits can't be cancelled. So a context that can be takes another goroutine, which stays in the driver until the
// work ends, with an operating system's thread to itself, and holds the gate that leave gives up: what it waits for is not
// destroyed under it. A context that can't be cancelled costs nothing of that.
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
	return &device.Error{Op: op, Device: d.name, Detail: "the work goes on", Err: ctx.Err()}
}
