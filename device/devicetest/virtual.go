package devicetest

import (
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var virtualTests = []test{
	{"adjacent mappings are one range", func(f *fixture) {
		v, g := f.virtual()
		p := f.reserve(4 * g)
		s := f.stream()
		f.refused(s.Memset(p, 1, 1), device.ErrInvalid)
		f.mapped(p, g)
		f.mapped(p+device.Ptr(g), 2*g)
		require.NoError(f, s.Memset(p, 1, 3*g))
		f.refused(s.Memset(p, 1, 3*g+1), device.ErrInvalid)
		f.addOne(s, p+device.Ptr(g)-8, 16)
		want := append(append(filled(8, 1), filled(16, 2)...), filled(8, 1)...)
		f.same(want, f.read(s, p+device.Ptr(g)-16, 32))
		require.NoError(f, s.CopyD2D(p, p+device.Ptr(2*g)-16, 32))
		if visible, ok := f.dev.(device.HostVisible); ok {
			f.synchronize(s)
			b, err := visible.Bytes(p+device.Ptr(g)-16, 32)
			require.NoError(f, err)
			require.Equal(f, want, b)
		}
		rows := &device.Copy2D{Width: 16, Height: 3, Dst: p + device.Ptr(g) - 28, DstPitch: 20, Src: p + device.Ptr(g) + 28, SrcPitch: 16}
		require.NoError(f, s.Memset(rows.Src, 5, 48))
		require.NoError(f, s.Copy2D(rows))
		row := append(filled(16, 5), filled(4, 1)...)
		want = slices.Concat(row, row, row[:16])
		f.same(want, f.read(s, rows.Dst, 56))
		require.Zero(f, int64(p)%v.Granularity())
	}},
	{"a hole ends a range", func(f *fixture) {
		v, g := f.virtual()
		p := f.reserve(3 * g)
		s := f.stream()
		f.mapped(p, g)
		f.mapped(p+device.Ptr(2*g), g)
		f.refused(s.Memset(p, 1, 3*g), device.ErrInvalid)
		f.refused(s.Memset(p, 1, 2*g), device.ErrInvalid)
		require.NoError(f, v.Map(p+device.Ptr(g), g))
		require.NoError(f, s.Memset(p, 1, 3*g))
		require.NoError(f, v.Unmap(p+device.Ptr(g), g))
		f.refused(s.Memset(p, 1, 3*g), device.ErrInvalid)
		require.NoError(f, s.Memset(p, 1, g))
	}},
	{"mappings use memory, reservations don't", func(f *fixture) {
		if f.Shared {
			f.Skip("others use the memory")
		}
		v, g := f.virtual()
		free := func() int64 {
			free, _, err := f.dev.MemInfo()
			require.NoError(f, err)
			return free
		}
		before := free()
		p := f.reserve(2 * g)
		require.Equal(f, before, free())
		require.NoError(f, v.Map(p, 2*g))
		require.Equal(f, before-2*g, free())
		require.NoError(f, v.Unmap(p, 2*g))
		require.Equal(f, before, free())
	}},
	{"wrong ranges are refused", func(f *fixture) {
		v, g := f.virtual()
		p := f.reserve(4 * g)
		gp := device.Ptr(g)
		for _, n := range []int64{0, -g, g + 1, math.MinInt64} {
			_, err := v.Reserve(n)
			f.refused(err, device.ErrInvalid)
			f.refused(v.Map(p, n), device.ErrInvalid)
			f.refused(v.Unmap(p, n), device.ErrInvalid)
		}
		f.refused(v.Map(p+1, g), device.ErrInvalid)
		f.refused(v.Map(p, 5*g), device.ErrInvalid)
		f.refused(v.Map(p+3*gp, 2*g), device.ErrInvalid)
		f.refused(v.Map(p-gp, 2*g), device.ErrInvalid)
		f.refused(v.Map(0, g), device.ErrInvalid)
		f.refused(v.Unmap(p, g), device.ErrInvalid)
		f.mapped(p, 2*g)
		f.refused(v.Map(p, g), device.ErrInvalid)
		f.refused(v.Map(p+gp, 2*g), device.ErrInvalid)
		f.refused(v.Unmap(p, g), device.ErrInvalid)
		f.refused(v.Unmap(p+gp, g), device.ErrInvalid)
		f.refused(v.Unmap(p+gp, 2*g), device.ErrInvalid)
		f.refused(v.Unmap(p, 3*g), device.ErrInvalid)
		f.refused(v.Unreserve(p), device.ErrInvalid)
		f.refused(v.Unreserve(p+gp), device.ErrInvalid)
		f.refused(v.Unreserve(0), device.ErrInvalid)
		f.refused(f.dev.Free(p), device.ErrInvalid)
		q := f.alloc(2 * g)
		f.refused(v.Unmap(q, 2*g), device.ErrInvalid)
		f.refused(v.Unreserve(q), device.ErrInvalid)
	}},
	{"too much is out of memory, and maps nothing", func(f *fixture) {
		v, g := f.virtual()
		_, err := v.Reserve(math.MaxInt64 / g * g)
		f.refused(err, device.ErrOutOfMemory)
		if f.Shared {
			return // the rest would take other programs' memory
		}
		free, total, err := f.dev.MemInfo()
		require.NoError(f, err)
		if total/8 < g {
			f.Skip("the device is too small to reserve more than it has")
		}
		n := (free/g + 1) * g
		p := f.reserve(n)
		e := f.refused(v.Map(p, n), device.ErrOutOfMemory)
		require.Equal(f, device.CodeOutOfMemory, e.Code)
		f.refused(f.stream().Memset(p, 1, 1), device.ErrInvalid)
		require.NoError(f, v.Map(p, n-g))
		require.NoError(f, v.Unmap(p, n-g))
	}},
	{"Unmap waits for queued work that names the range", func(f *fixture) {
		v, g := f.virtual()
		p := f.reserve(2 * g)
		s := f.stream()
		require.NoError(f, v.Map(p, g))
		require.NoError(f, v.Map(p+device.Ptr(g), g))
		require.NoError(f, s.Memset(p+device.Ptr(g)-8, 0, 16))
		release := f.block(s)
		f.addOne(s, p+device.Ptr(g)-8, 16)
		f.waits(release, func() { require.NoError(f, v.Unmap(p, 2*g)) })
		f.refused(s.Memset(p, 1, 1), device.ErrInvalid)
	}},
}

func (f *fixture) virtual() (v device.VirtualMemory, granularity int64) {
	v, ok := f.dev.(device.VirtualMemory)
	if !ok {
		f.Skip("the backend has no virtual memory")
	}
	require.Positive(f, v.Granularity())
	return v, v.Granularity()
}

func (f *fixture) reserve(bytes int64) device.Ptr {
	f.Helper()
	v, _ := f.virtual()
	p, err := v.Reserve(bytes)
	require.NoError(f, err)
	f.cleanup(func() error { return v.Unreserve(p) })
	return p
}

func (f *fixture) mapped(p device.Ptr, bytes int64) {
	f.Helper()
	v, _ := f.virtual()
	require.NoError(f, v.Map(p, bytes))
	f.cleanup(func() error { return v.Unmap(p, bytes) })
}
