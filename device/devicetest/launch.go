package devicetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var launchTests = []test{
	{"StreamOptions.Launching brackets each kernel", launchesAreSeen},
	{"runs the kernel on the ranges that it names", func(f *fixture) {
		s := f.stream()
		for _, n := range sizes {
			p := f.alloc(n)
			f.fill(s, p, n, 41)
			f.addOne(s, p, n)
			f.same(filled(n, 42), f.read(s, p, n))
		}
	}},
	{"the Launch may be reused as soon as it returns", func(f *fixture) {
		const n = 64
		s, p, q := f.stream(), f.alloc(n), f.alloc(n)
		release := f.block(s)
		l := f.Fill(f, f.dev, p, n, 1)
		require.NoError(f, s.Launch(l))
		next := f.Fill(f, f.dev, q, n, 2)
		clear(l.Args)
		clear(l.Reads)
		clear(l.Writes)
		*l = *next
		require.NoError(f, s.Launch(l))
		*l = device.Launch{}
		release()
		f.same(filled(n, 1), f.read(s, p, n))
		f.same(filled(n, 2), f.read(s, q, n))
	}},
	{"names any number of ranges", func(f *fixture) {
		const n = 64
		s := f.stream()
		var ptrs []device.Ptr
		for range 40 {
			ptrs = append(ptrs, f.alloc(n))
		}
		l := f.Fill(f, f.dev, ptrs[0], n, 3)
		for _, p := range ptrs[1:] {
			l.Reads = append(l.Reads, device.Range{Ptr: p, Bytes: n})
			l.Writes = append(l.Writes, device.Range{Ptr: p, Bytes: n}, device.Range{Ptr: p, Bytes: 0})
		}
		require.NoError(f, s.Launch(l))
		f.same(filled(n, 3), f.read(s, ptrs[0], n))
	}},
	{"nil and wrong ranges are refused", func(f *fixture) {
		const n = 64
		s, p := f.stream(), f.alloc(n)
		f.refused(s.Launch(nil), device.ErrInvalid)
		f.refused(s.Launch(&device.Launch{Name: "nothing"}), device.ErrInvalid)
		for _, wrong := range []device.Range{{Ptr: p, Bytes: n + 1}, {Ptr: p + 1, Bytes: n}, {Ptr: p, Bytes: -1},
			{Ptr: 0, Bytes: 1}, {Ptr: p, Bytes: 1 << 62}} {
			l := f.Fill(f, f.dev, p, n, 1)
			l.Reads = append(l.Reads, wrong)
			f.refused(s.Launch(l), device.ErrInvalid)
			l = f.Fill(f, f.dev, p, n, 1)
			l.Writes = append(l.Writes, wrong)
			f.refused(s.Launch(l), device.ErrInvalid)
		}
		require.True(f, f.done(s), "nothing was queued")
	}},
}
