package devicetest

import "github.com/stretchr/testify/require"

var orderTests = []test{
	{"operations of a stream run in order", func(f *fixture) {
		const n = 1000
		s, p := f.stream(), f.alloc(n)
		require.NoError(f, s.Memset(p, 1, n))
		for range 50 {
			f.addOne(s, p, n)
		}
		f.same(filled(n, 51), f.read(s, p, n))
		for range 20 {
			f.fill(s, p, n, 3)
			f.addOne(s, p, n/2)
			require.NoError(f, s.CopyD2D(p+n/2, p, n/2))
			f.addOne(s, p, n)
		}
		f.same(filled(n, 5), f.read(s, p, n))
	}},
	{"brief kernels run in order", func(f *fixture) {
		const n = 64
		s, p := f.stream(), f.alloc(n)
		briefly := func() {
			l := f.AddOne(f, f.dev, p, n)
			l.Brief = true
			require.NoError(f, s.Launch(l))
		}
		require.NoError(f, s.Memset(p, 0, n))
		for i := range 50 {
			briefly()
			if i%5 == 0 {
				f.synchronize(s)
			}
			f.addOne(s, p, n)
			briefly()
		}
		f.same(filled(n, 150), f.read(s, p, n))
		briefly()
		f.synchronize(s)
		briefly()
		f.same(filled(n, 152), f.read(s, p, n))
	}},
	{"calls that queue don't wait for the work", func(f *fixture) {
		s, p, host := f.stream(), f.alloc(64), f.pinned(64)
		release := f.block(s)
		f.addOne(s, p, 64)
		require.NoError(f, s.Memset(p, 1, 64))
		require.NoError(f, s.CopyD2H(host, p))
		require.NoError(f, s.CopyH2D(p, host))
		e := f.recorded(s)
		require.NoError(f, s.Wait(e))
		require.False(f, f.done(s))
		require.False(f, f.done(e))
		release()
		f.synchronize(s)
		require.True(f, f.done(s))
		require.True(f, f.done(e))
	}},
	{"streams are independent", func(f *fixture) {
		busy, s, p := f.stream(), f.stream(), f.alloc(64)
		release := f.block(busy)
		f.fill(s, p, 64, 7)
		f.same(filled(64, 7), f.read(s, p, 64))
		require.False(f, f.done(busy))
		release()
	}},
	{"a new stream is done", func(f *fixture) {
		s := f.stream()
		require.True(f, f.done(s))
		f.synchronize(s)
	}},
	{"the device's Synchronize waits for every stream", func(f *fixture) {
		a, b := f.stream(), f.stream()
		release := f.block(a)
		p := f.alloc(64)
		f.fill(b, p, 64, 7)
		f.waits(release, func() { f.synchronize(f.dev) })
		require.True(f, f.done(a))
		require.True(f, f.done(b))
	}},
}
