package devicetest

import (
	"context"
	"runtime"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var queueTests = []test{
	{"a full queue makes the next call wait", func(f *fixture) {
		if f.Depth == 0 {
			f.Skip("the backend's depth is not exact")
		}
		const n = 16
		s, p := f.stream(), f.alloc(n)
		require.NoError(f, s.Memset(p, 0, n))
		f.synchronize(s)
		release := f.block(s)
		for range f.Depth - 1 {
			f.addOne(s, p, n)
		}
		f.waits(release, func() { f.addOne(s, p, n) })
		f.same(filled(n, byte(f.Depth)), f.read(s, p, n))
	}},
	{"Query and Synchronize with a context work while it is full", func(f *fixture) {
		if f.Depth == 0 {
			f.Skip("the backend's depth is not exact")
		}
		s, p := f.stream(), f.alloc(16)
		release := f.block(s)
		for range f.Depth - 1 {
			f.addOne(s, p, 16)
		}
		require.False(f, f.done(s))
		ctx, cancel := context.WithCancel(background)
		cancel()
		require.ErrorIs(f, s.Synchronize(ctx), context.Canceled)
		release()
		f.synchronize(s)
	}},
	{"Synchronize ends with its context, and the work continues", func(f *fixture) {
		s, p := f.stream(), f.alloc(16)
		release := f.block(s)
		f.fill(s, p, 16, 9)
		ctx, cancel := context.WithCancel(background)
		result := make(chan error)
		go func() { result <- s.Synchronize(ctx) }()
		runtime.Gosched()
		cancel()
		require.ErrorIs(f, <-result, context.Canceled)
		require.ErrorIs(f, s.Synchronize(ctx), context.Canceled)
		require.ErrorIs(f, f.dev.Synchronize(ctx), context.Canceled)
		require.False(f, f.done(s))
		release()
		f.same(filled(16, 9), f.read(s, p, 16))
		require.NoError(f, s.Synchronize(ctx), "nothing is left to wait for")
	}},
	{"Synchronize without a context is refused", func(f *fixture) {
		s := f.stream()
		e := f.recorded(s)
		var none context.Context
		for range 2 { // the second time all is done already
			f.refused(s.Synchronize(none), device.ErrInvalid)
			f.refused(e.Synchronize(none), device.ErrInvalid)
			f.refused(f.dev.Synchronize(none), device.ErrInvalid)
			f.synchronize(s)
		}
	}},
	{"Synchronize doesn't wait for later work", func(f *fixture) {
		s := f.stream()
		first := f.block(s)
		result := make(chan error, 1)
		ready := make(chan struct{})
		e := f.recorded(s)
		go func() {
			close(ready)
			result <- e.Synchronize(background)
		}()
		<-ready
		second := f.block(s)
		first()
		require.NoError(f, <-result)
		require.False(f, f.done(s))
		second()
	}},
}
