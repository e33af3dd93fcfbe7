package devicetest

import (
	"context"
	"runtime"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var eventTests = []test{
	{"one that was never recorded is complete", func(f *fixture) {
		s, busy, e := f.stream(), f.stream(), f.event(false)
		release := f.block(busy)
		require.True(f, f.done(e))
		f.synchronize(e)
		require.NoError(f, s.Wait(e))
		f.synchronize(s)
		release()
	}},
	{"is complete when the work before it is done, not earlier", func(f *fixture) {
		s, p := f.stream(), f.alloc(64)
		release := f.block(s)
		e := f.recorded(s)
		later := f.block(s)
		require.False(f, f.done(e))
		release()
		f.synchronize(e)
		require.True(f, f.done(e))
		require.False(f, f.done(s))
		later()
		f.fill(s, p, 64, 1)
	}},
	{"recording again replaces the record", func(f *fixture) {
		s, e := f.stream(), f.event(false)
		for range 3 {
			release := f.block(s)
			require.NoError(f, s.Record(e))
			require.False(f, f.done(e))
			release()
			f.synchronize(e)
			require.True(f, f.done(e))
		}
	}},
	{"a wait orders streams", func(f *fixture) {
		const n = 1 << 16
		a, b, p := f.stream(), f.stream(), f.alloc(n)
		for i := range 10 {
			release := f.block(a)
			f.fill(a, p, n, byte(i))
			require.NoError(f, b.Wait(f.recorded(a)))
			f.addOne(b, p, n)
			require.False(f, f.done(b))
			release()
			f.same(filled(n, byte(i)+1), f.read(b, p, n))
		}
	}},
	{"a chain of waits orders many streams", func(f *fixture) {
		const n = 256
		p := f.alloc(n)
		streams := make([]device.Stream, 8)
		for i := range streams {
			streams[i] = f.stream()
		}
		require.NoError(f, streams[7].Memset(p, 0, n))
		e := f.event(false)
		last := streams[7]
		for range 10 {
			for _, s := range streams {
				// The same event is recorded again and again; queued waits must keep their own
				// records.
				require.NoError(f, last.Record(e))
				require.NoError(f, s.Wait(e))
				f.addOne(s, p, n)
				last = s
			}
		}
		f.same(filled(n, 80), f.read(last, p, n))
	}},
	{"a wait is for the record at the call", func(f *fixture) {
		a, b, waiter, e := f.stream(), f.stream(), f.stream(), f.event(false)
		releaseA, releaseB := f.block(a), f.block(b)
		require.NoError(f, a.Record(e))
		require.NoError(f, waiter.Wait(e))
		require.NoError(f, b.Record(e))
		releaseA()
		f.synchronize(waiter)
		require.False(f, f.done(e), "the last record is b's")
		releaseB()
		f.synchronize(e)
	}},
	{"a record after the call is not waited for", func(f *fixture) {
		a, waiter, e := f.stream(), f.stream(), f.event(false)
		require.NoError(f, waiter.Wait(e))
		release := f.block(a)
		require.NoError(f, a.Record(e))
		f.synchronize(waiter)
		release()
	}},
	{"a stream may wait for itself", func(f *fixture) {
		s := f.stream()
		release := f.block(s)
		require.NoError(f, s.Wait(f.recorded(s)))
		release()
		f.synchronize(s)
	}},
	{"Synchronize ends with its context", func(f *fixture) {
		s := f.stream()
		release := f.block(s)
		e := f.recorded(s)
		ctx, cancel := context.WithCancel(background)
		result := make(chan error)
		go func() { result <- e.Synchronize(ctx) }()
		runtime.Gosched()
		cancel()
		require.ErrorIs(f, <-result, context.Canceled)
		require.False(f, f.done(e))
		release()
		f.synchronize(e)
		require.NoError(f, e.Synchronize(ctx), "nothing is left to wait for")
	}},
	{"many goroutines wait for one", func(f *fixture) {
		s := f.stream()
		release := f.block(s)
		e := f.recorded(s)
		result := make(chan error)
		for range 16 {
			go func() { result <- e.Synchronize(background) }()
		}
		runtime.Gosched()
		release()
		for range 16 {
			require.NoError(f, <-result)
		}
	}},
	{"closing doesn't touch queued waits", func(f *fixture) {
		a, b, e := f.stream(), f.stream(), f.event(false)
		release := f.block(a)
		require.NoError(f, a.Record(e))
		require.NoError(f, b.Wait(e))
		require.NoError(f, e.Close())
		require.False(f, f.done(b))
		release()
		f.synchronize(b)
	}},
	{"wrong events are refused", func(f *fixture) {
		s := f.stream()
		for _, e := range []device.Event{nil, foreign{}} {
			f.refused(s.Record(e), device.ErrInvalid)
			f.refused(s.Wait(e), device.ErrInvalid)
		}
		require.True(f, f.done(s))
	}},
	{"one of another device of the backend may be waited for, not recorded", func(f *fixture) {
		other := f.Open(f)
		defer func() { require.NoError(f, other.Close()) }()
		if other.ID() == f.dev.ID() {
			f.Skip("the backend has one device")
		}
		theirs, err := other.NewStream(device.StreamOptions{})
		require.NoError(f, err)
		e, err := other.NewEvent(device.EventOptions{})
		require.NoError(f, err)
		mine := f.stream()
		f.refused(mine.Record(e), device.ErrInvalid)
		timed, err := other.NewEvent(device.EventOptions{Timed: true})
		require.NoError(f, err)
		require.NoError(f, theirs.Record(timed))
		require.NoError(f, theirs.Synchronize(background))
		_, err = f.dev.Elapsed(timed, timed)
		f.refused(err, device.ErrInvalid)
		require.NoError(f, timed.Close())
		release := f.block(theirs)
		require.NoError(f, theirs.Record(e))
		require.NoError(f, mine.Wait(e))
		require.False(f, f.done(mine))
		release()
		f.synchronize(mine)
		require.NoError(f, e.Close())
		require.NoError(f, theirs.Close())
	}},
}

// foreign is an event of no backend.
type foreign struct{}

func (foreign) Query() (bool, error)              { return true, nil }
func (foreign) Synchronize(context.Context) error { return nil }
func (foreign) Timed() bool                       { return true }
func (foreign) Close() error                      { return nil }
