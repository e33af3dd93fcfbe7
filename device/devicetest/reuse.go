package devicetest

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
)

// Backends may pool the driver's events. These tests keep using handles after Close, while the
// driver's events have other owners.
var reuseTests = []test{
	{"making and closing an event costs a handle", func(f *fixture) {
		if race.Enabled {
			f.Skip("the race detector allocates")
		}
		for _, timed := range []bool{false, true} {
			cost := testing.AllocsPerRun(100, func() {
				e, err := f.dev.NewEvent(device.EventOptions{Timed: timed})
				if err = errors.Join(err, e.Close()); err != nil {
					f.Error(err)
				}
			})
			require.LessOrEqual(f, cost, 1.0, "allocations by Go; timed: %t", timed)
		}
	}},
	{"a closed event does not touch those made later", func(f *fixture) {
		s, busy := f.stream(), f.stream()
		old := f.recorded(s)
		f.synchronize(s)
		require.NoError(f, old.Close())
		later := []device.Event{f.event(false), f.event(false), f.event(false)}
		release := f.block(busy)
		for _, e := range later {
			require.NoError(f, busy.Record(e))
		}
		for range 2 {
			f.refused(s.Record(old), device.ErrClosed)
			f.refused(s.Wait(old), device.ErrClosed)
			f.refused(old.Synchronize(background), device.ErrClosed)
			_, err := old.Query()
			f.refused(err, device.ErrClosed)
			require.NoError(f, old.Close())
			for _, e := range later {
				require.False(f, f.done(e), "its stream is busy")
			}
			later = append(later, f.event(false)) // may be the event that the second Close released
			require.NoError(f, busy.Record(later[len(later)-1]))
		}
		release()
		for _, e := range later {
			f.synchronize(e)
		}
	}},
	{"a new event has no record", func(f *fixture) {
		s, other := f.stream(), f.stream()
		release := f.block(s)
		for range 3 {
			require.NoError(f, f.recorded(s).Close())
		}
		for range 3 {
			e := f.event(false)
			require.True(f, f.done(e), "the record is a closed one's")
			f.synchronize(e)
			require.NoError(f, other.Wait(e))
		}
		f.synchronize(other)
		release()
	}},
	{"a wait is for the record of an event that was closed, and made anew", func(f *fixture) {
		const n = 64
		s, waiter, idle, p := f.stream(), f.stream(), f.stream(), f.alloc(n)
		release := f.block(s)
		f.fill(s, p, n, 1)
		e := f.recorded(s)
		require.NoError(f, waiter.Wait(e))
		f.addOne(waiter, p, n)
		require.NoError(f, e.Close())
		for range 3 {
			f.synchronize(f.recorded(idle))
		}
		require.False(f, f.done(waiter))
		release()
		f.same(filled(n, 2), f.read(waiter, p, n))
	}},
	{"events are closed while other goroutines use them", func(f *fixture) {
		var shared [4]atomic.Pointer[device.Event]
		renew := func(i int) error {
			e, err := f.dev.NewEvent(device.EventOptions{})
			if err != nil {
				return err
			}
			if old := shared[i].Swap(&e); old != nil {
				return (*old).Close()
			}
			return nil
		}
		for i := range shared {
			require.NoError(f, renew(i))
		}
		own := make([]device.Stream, 4)
		for i := range own {
			own[i] = f.stream()
		}
		var wg sync.WaitGroup
		for i, s := range own {
			wg.Go(func() {
				mine, err := f.dev.NewEvent(device.EventOptions{})
				if err != nil {
					f.Error(err)
					return
				}
				for n := range 300 {
					e := *shared[n%len(shared)].Load()
					_, queried := e.Query()
					for _, err := range []error{s.Record(e), s.Wait(e), queried} {
						if err != nil && !errors.Is(err, device.ErrClosed) {
							f.Error(err)
						}
					}
					// Only this goroutine uses mine.
					if err := errors.Join(renew((n+i)%len(shared)), s.Record(mine), mine.Synchronize(background)); err != nil {
						f.Error(err)
					}
					if done, err := mine.Query(); !done || err != nil {
						f.Error("not complete after Synchronize", err)
					}
				}
				if err := mine.Close(); err != nil {
					f.Error(err)
				}
			})
		}
		wg.Wait()
		for i := range shared {
			require.NoError(f, (*shared[i].Load()).Close())
		}
	}},
}
