package host_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
)

// TestCloseWhileEverythingIsInUse: Close waits for none of the calls for ever, nor they for it, and what they
// return is ErrClosed.
func TestCloseWhileEverythingIsInUse(t *testing.T) {
	for round := range 20 {
		d, err := host.New(host.Config{Capacity: 64 << 20})
		require.NoError(t, err)
		var users, closers sync.WaitGroup
		for range 6 {
			users.Go(func() {
				for {
					if err := useOnce(d); err != nil {
						assert.ErrorIs(t, err, device.ErrClosed)
						return
					}
				}
			})
		}
		time.Sleep(time.Duration(round%10) * 100 * time.Microsecond)
		for range 2 {
			closers.Go(func() { _ = d.Close() }) // reports what was in use
		}
		closers.Wait()
		users.Wait()
	}
}

// useOnce returns the first error.
func useOnce(d *host.Device) error {
	var errs []error
	step := func(err error) { errs = append(errs, err) }
	s, err := d.NewStream(device.StreamOptions{})
	if err != nil {
		return err
	}
	e, err := d.NewEvent(device.EventOptions{})
	if err != nil {
		return err
	}
	p, err := d.Alloc(4096)
	if err != nil {
		return err
	}
	b, err := d.AllocPinned(4096)
	if err != nil {
		return err
	}
	g := d.Granularity()
	if r, err := d.Reserve(g); err == nil {
		step(d.Map(r, g))
		step(s.Memset(r, 1, 100))
		step(d.Unmap(r, g))
		step(d.Unreserve(r))
	} else if !errors.Is(err, device.ErrOutOfMemory) {
		return err
	}
	registered := make([]byte, 64)
	_, err = d.MappedPtr(b)
	step(err)
	step(d.Register(registered))
	step(s.CopyH2D(p, registered))
	step(d.Unregister(registered))
	step(s.Launch(&device.Launch{Func: func() {}, Writes: []device.Range{{Ptr: p, Bytes: 4096}}}))
	step(s.CopyD2H(b, p))
	step(s.Record(e))
	step(s.Wait(e))
	step(s.OnDone(func(error) {}))
	step(d.Synchronize(context.Background()))
	step(d.Free(p))
	step(d.FreePinned(b))
	step(s.Close())
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
