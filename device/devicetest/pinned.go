package devicetest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var pinnedTests = []test{
	{"is ordinary memory of the requested size", func(f *fixture) {
		for _, n := range sizes {
			b := f.pinned(n)
			pattern(b)
			require.EqualValues(f, n, cap(b))
		}
		for _, n := range []int64{0, -1, math.MinInt64} {
			_, err := f.dev.AllocPinned(n)
			f.refused(err, device.ErrInvalid)
		}
		_, err := f.dev.AllocPinned(math.MaxInt64)
		f.refused(err, device.ErrOutOfMemory)
	}},
	{"is freed by its beginning, once", func(f *fixture) {
		b, err := f.dev.AllocPinned(64)
		require.NoError(f, err)
		for _, wrong := range [][]byte{nil, {}, b[1:], make([]byte, 64)} {
			f.refused(f.dev.FreePinned(wrong), device.ErrInvalid)
		}
		f.refused(f.dev.Unregister(b), device.ErrInvalid)
		require.NoError(f, f.dev.FreePinned(b[:3]))
		f.refused(f.dev.FreePinned(b), device.ErrInvalid)
	}},
	{"is freed after the copies that use it", func(f *fixture) {
		s, p := f.stream(), f.alloc(64)
		for _, queue := range []func(b []byte) error{
			func(b []byte) error { return s.CopyH2D(p, b[1:]) },
			func(b []byte) error { return s.CopyD2H(b[:7], p) },
		} {
			b, err := f.dev.AllocPinned(64)
			require.NoError(f, err)
			release := f.block(s)
			require.NoError(f, queue(b))
			f.waits(release, func() { require.NoError(f, f.dev.FreePinned(b)) })
			f.refused(queue(b), device.ErrNotPinned)

			b = make([]byte, 64)
			require.NoError(f, f.dev.Register(b))
			release = f.block(s)
			require.NoError(f, queue(b))
			f.waits(release, func() { require.NoError(f, f.dev.Unregister(b)) })
			f.refused(queue(b), device.ErrNotPinned)
		}
	}},
	{"a Go slice is pinned in place", func(f *fixture) {
		const n = 10_000
		s, p, mine := f.stream(), f.alloc(n), make([]byte, n)
		pattern(mine)
		require.NoError(f, f.dev.Register(mine))
		require.NoError(f, s.CopyH2D(p, mine))
		require.NoError(f, s.CopyD2H(mine[n/2:], p))
		f.synchronize(s)
		f.same(mine[:n/2], mine[n/2:])
		require.NoError(f, f.dev.Unregister(mine))
		f.refused(f.dev.Unregister(mine), device.ErrInvalid)
		f.refused(f.dev.FreePinned(mine), device.ErrInvalid)
		require.NoError(f, f.dev.Register(mine[:10]), "it can be registered again")
		require.NoError(f, f.dev.Unregister(mine[:10]))
	}},
	{"slices that overlap can't be registered", func(f *fixture) {
		mine, pinned := make([]byte, 3*4096), f.pinned(4096)
		require.NoError(f, f.dev.Register(mine[4096:8192]))
		for _, wrong := range [][]byte{nil, {}, mine, mine[4096:8192], mine[5000:5001], mine[:4097], mine[8191:],
			pinned, pinned[5:6]} {
			f.refused(f.dev.Register(wrong), device.ErrInvalid)
		}
		require.NoError(f, f.dev.Unregister(mine[4096:8192]))
		require.NoError(f, f.dev.Register(mine))
		require.NoError(f, f.dev.Unregister(mine))
	}},
	{"every device of the backend can use it, and its own one frees it", func(f *fixture) {
		const n = 512
		other := f.own()
		defer func() { require.NoError(f, other.Close()) }()
		s, err := other.NewStream(device.StreamOptions{})
		require.NoError(f, err)
		p, err := other.Alloc(n)
		require.NoError(f, err)
		b, err := f.dev.AllocPinned(n)
		require.NoError(f, err)
		pattern(b[:n/2])
		require.NoError(f, s.CopyH2D(p, b[:n/2]))
		require.NoError(f, s.CopyD2H(b[n/2:], p))
		f.synchronize(s)
		f.same(b[:n/2], b[n/2:])
		mapped, err := other.MappedPtr(b[100:200])
		require.NoError(f, err)
		require.NoError(f, s.Launch(f.Fill(f, other, mapped, 100, 3)))
		require.NoError(f, s.Launch(f.AddOne(f, other, mapped, 100)))
		f.synchronize(s)
		f.same(filled(100, 4), b[100:200])

		require.ErrorIs(f, other.FreePinned(b), device.ErrInvalid)
		require.NoError(f, f.dev.FreePinned(b))
		for _, kernel := range []bool{false, true} {
			b, err := f.dev.AllocPinned(n)
			require.NoError(f, err)
			mapped, err := other.MappedPtr(b[100:200])
			require.NoError(f, err)
			launch := f.Fill(f, other, mapped, 100, 3)
			queue := func() error {
				if kernel {
					return s.Launch(launch)
				}
				return s.CopyD2H(b, p)
			}
			release := f.block(s)
			require.NoError(f, queue())
			f.waits(release, func() { require.NoError(f, f.dev.FreePinned(b)) })
			require.Error(f, queue())
		}
		_, err = other.MappedPtr(make([]byte, n))
		require.Error(f, err)
		require.NoError(f, other.Free(p))
		require.NoError(f, s.Close())
	}},
	{"a device's Close frees its pinned memory for all devices", func(f *fixture) {
		other, s, p := f.own(), f.stream(), f.alloc(64)
		b, err := other.AllocPinned(64)
		require.NoError(f, err)
		require.NoError(f, s.CopyH2D(p, b))
		f.synchronize(s)
		require.Error(f, other.Close())
		f.refused(s.CopyH2D(p, b), device.ErrNotPinned)
	}},
	{"kernels use mapped memory in place", func(f *fixture) {
		const n = 512
		s, mine := f.stream(), make([]byte, n)
		require.NoError(f, f.dev.Register(mine))
		for _, host := range [][]byte{f.pinned(n), mine} {
			clear(host)
			p, err := f.dev.MappedPtr(host)
			require.NoError(f, err)
			f.fill(s, p, n, 3)
			part, err := f.dev.MappedPtr(host[100:200])
			require.NoError(f, err)
			f.addOne(s, part, 100)
			f.synchronize(s)
			f.same(append(append(filled(100, 3), filled(100, 4)...), filled(n-200, 3)...), host)
		}
		require.NoError(f, f.dev.Unregister(mine))
		for _, wrong := range [][]byte{nil, {}, mine} {
			_, err := f.dev.MappedPtr(wrong)
			require.Error(f, err)
		}
	}},
}
