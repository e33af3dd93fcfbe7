package devicetest

import (
	"errors"
	"sync"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var overtakenTests = []test{
	{"every Close of a stream waits, whichever is first", func(f *fixture) {
		s := f.stream()
		release := f.block(s)
		f.waits(release, func() {
			f.together(3, func(int) error {
				if err := s.Close(); err != nil || !s.Closed() {
					return errors.Join(errors.New("a Close has returned and the stream is not closed"), err)
				}
				return nil
			})
		})
	}},
	{"every Close of a device waits, whichever is first", func(f *fixture) {
		d := f.own()
		s, err := d.NewStream(device.StreamOptions{})
		require.NoError(f, err)
		release := f.block(s)
		f.waits(release, func() {
			f.together(3, func(int) error {
				if err := d.Close(); err != nil || !s.Closed() {
					return errors.Join(errors.New("a Close has returned and the stream is not closed"), err)
				}
				return nil
			})
		})
	}},
	{"calls that Close overtakes return that the device is closed", func(f *fixture) {
		for round := range 20 {
			d := f.own()
			var users, closers sync.WaitGroup
			for range 6 {
				users.Go(func() {
					for {
						if err := f.useOnce(d); err != nil {
							assert.ErrorIs(f, err, device.ErrClosed)
							return
						}
					}
				})
			}
			time.Sleep(time.Duration(round%10) * 100 * time.Microsecond)
			for range 2 {
				closers.Go(func() { _ = d.Close() }) // returns an error that lists leftover memory
			}
			closers.Wait()
			users.Wait()
		}
	}},
}

// own returns a device that the test closes itself.
func (f *fixture) own() device.Device {
	f.Helper()
	d := f.Open(f)
	if d.ID() == f.dev.ID() {
		require.NoError(f, d.Close())
		f.Skip("the backend shares its device")
	}
	return d
}

// useOnce makes every kind of call, and returns the first error.
func (f *fixture) useOnce(d device.Device) error {
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
	if v, ok := d.(device.VirtualMemory); ok {
		g := v.Granularity()
		if r, err := v.Reserve(g); err == nil {
			step(v.Map(r, g))
			step(s.Memset(r, 1, 100))
			step(v.Unmap(r, g))
			step(v.Unreserve(r))
		} else if !errors.Is(err, device.ErrOutOfMemory) {
			return err
		}
	}
	registered := make([]byte, 64)
	_, err = d.MappedPtr(b)
	step(err)
	step(d.Register(registered))
	step(s.CopyH2D(p, registered))
	step(d.Unregister(registered))
	step(s.Memset(p, 1, 4096))
	if _, ok := d.(device.HostVisible); ok {
		step(s.Launch(&device.Launch{Func: func() {}, Writes: []device.Range{{Ptr: p, Bytes: 4096}}}))
	}
	step(s.CopyD2H(b, p))
	step(s.Record(e))
	step(s.Wait(e))
	step(s.OnDone(func(error) {}))
	step(d.Synchronize(background))
	step(d.Free(p))
	step(d.FreePinned(b))
	step(s.Close())
	step(e.Close())
	return errors.Join(errs...)
}
