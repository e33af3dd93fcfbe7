package devicetest

import (
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// sizes are sizes that implementations treat differently.
var sizes = []int64{1, 3, 7, 8, 9, 255, 256, 257, 4096, 1<<20 + 5}

// pattern fills memory with bytes that differ from their neighbors almost everywhere.
func pattern(b []byte) {
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
}

var copyTests = []test{
	{"up, across and down, at any size and offset", func(f *fixture) {
		s := f.stream()
		for _, n := range sizes {
			for _, offset := range []int64{0, 1, 5} {
				a, b := f.alloc(n+offset), f.alloc(n+offset)
				up, down := f.pinned(n+offset), f.pinned(n+offset)
				pattern(up)
				o := device.Ptr(offset)
				require.NoError(f, s.CopyH2D(a+o, up[offset:]))
				require.NoError(f, s.CopyD2D(b, a+o, n))
				require.NoError(f, s.CopyD2H(down[:n], b))
				f.synchronize(s)
				f.same(up[offset:], down[:n])
			}
		}
	}},
	{"touches nothing else", func(f *fixture) {
		const n = 1024
		s, p, up, down := f.stream(), f.alloc(n), f.pinned(n), f.pinned(n)
		pattern(up)
		for i := range down {
			down[i] = 0xEE
		}
		require.NoError(f, s.Memset(p, 0xAA, n))
		require.NoError(f, s.CopyH2D(p+100, up[7:107]))
		require.NoError(f, s.CopyD2H(down[50:250], p+50))
		require.NoError(f, s.Memset(p+300, 1, 33))
		got := f.read(s, p, n)
		want := filled(n, 0xAA)
		copy(want[100:], up[7:107])
		copy(want[300:], filled(33, 1))
		f.same(want, got)
		copy(want[50:250], want[50:250])
		f.same(filled(50, 0xEE), down[:50])
		f.same(want[50:250], down[50:250])
		f.same(filled(n-250, 0xEE), down[250:])
	}},
	{"Memset at any size, offset and value", func(f *fixture) {
		s := f.stream()
		for _, n := range sizes {
			p := f.alloc(n + 16)
			require.NoError(f, s.Memset(p, 9, n+16))
			for _, offset := range []int64{0, 1, 7, 8} {
				for _, v := range []byte{0, 1, 0xFF} {
					require.NoError(f, s.Memset(p+device.Ptr(offset), v, n))
					want := append(filled(n, v), filled(16-offset, 9)...)
					f.same(append(filled(offset, 9), want...), f.read(s, p, n+16))
					require.NoError(f, s.Memset(p, 9, n+16))
				}
			}
		}
	}},
	{"empty copies copy nothing", func(f *fixture) {
		s, p := f.stream(), f.alloc(16)
		release := f.block(s)
		e := f.recorded(s)
		require.NoError(f, s.CopyH2D(p, nil))
		require.NoError(f, s.CopyH2D(p, []byte{}))
		require.NoError(f, s.CopyD2H(nil, p))
		require.NoError(f, s.CopyD2D(p, p, 0))
		require.NoError(f, s.Memset(p, 1, 0))
		release()
		f.synchronize(e)
	}},
	{"outside of an allocation is refused", func(f *fixture) {
		const n = 4096
		s, p, host := f.stream(), f.alloc(n), f.pinned(2*n)
		gone, err := f.dev.Alloc(n)
		require.NoError(f, err)
		require.NoError(f, f.dev.Free(gone))
		for _, wrong := range []struct {
			p device.Ptr
			n int64
		}{{p, n + 1}, {p + 1, n}, {p + n - 1, 2}, {p - 1, 2}, {0, 1}, {gone, 1},
			{^device.Ptr(0), 1}, {^device.Ptr(0) - 7, 16}} {
			t := fmt.Sprintf("%d bytes", wrong.n)
			f.refused(s.CopyH2D(wrong.p, host[:wrong.n]), device.ErrInvalid)
			f.refused(s.CopyD2H(host[:wrong.n], wrong.p), device.ErrInvalid)
			f.refused(s.Memset(wrong.p, 1, wrong.n), device.ErrInvalid)
			err := s.CopyD2D(wrong.p, p, wrong.n)
			e := f.refused(err, device.ErrInvalid)
			require.Equal(f, device.CodeInvalidValue, e.Code, t)
			f.refused(s.CopyD2D(p, wrong.p, wrong.n), device.ErrInvalid)
		}
		require.True(f, f.done(s), "nothing was queued")
	}},
	{"negative, overflowing and overlapping ranges are refused", func(f *fixture) {
		const n = 4096
		s, p, q := f.stream(), f.alloc(n), f.alloc(n)
		require.NoError(f, s.Memset(p, 0, n))
		for _, bytes := range []int64{-1, -1 << 63, 1<<63 - 1, 1 << 62} {
			f.refused(s.CopyD2D(q, p, bytes), device.ErrInvalid)
			f.refused(s.Memset(p, 0, bytes), device.ErrInvalid)
			f.refused(s.Memset(p+8, 0, bytes), device.ErrInvalid)
		}
		f.refused(s.CopyD2D(p, p+10, 11), device.ErrInvalid)
		f.refused(s.CopyD2D(p+10, p, 11), device.ErrInvalid)
		f.refused(s.CopyD2D(p, p, 1), device.ErrInvalid)
		require.NoError(f, s.CopyD2D(p, p+10, 10))
		require.NoError(f, s.CopyD2D(p+10, p, 10))
		f.synchronize(s)
	}},
	{"host memory that is not pinned is refused", func(f *fixture) {
		s, p, host := f.stream(), f.alloc(4096), f.pinned(64)
		pageable := make([]byte, 4096)
		require.NoError(f, s.Memset(p, 0, 4096))
		require.Equal(f, 64, cap(host), "the slice must not reach beyond what is pinned")
		f.refused(s.CopyH2D(p, pageable), device.ErrNotPinned)
		f.refused(s.CopyD2H(pageable, p), device.ErrNotPinned)
		if visible, ok := f.dev.(device.HostVisible); ok {
			own, err := visible.Bytes(f.alloc(64), 64)
			require.NoError(f, err)
			f.refused(s.CopyH2D(p, own), device.ErrNotPinned)
			f.refused(s.CopyD2H(own, p), device.ErrNotPinned)
		}
		require.NoError(f, f.dev.Register(pageable[:100]))
		f.refused(s.CopyH2D(p, pageable[:101]), device.ErrNotPinned)
		f.refused(s.CopyD2H(pageable[99:101], p), device.ErrNotPinned)
		require.NoError(f, s.CopyD2H(pageable[:100], p))
		require.NoError(f, f.dev.Unregister(pageable))
		f.refused(s.CopyH2D(p, pageable[:100]), device.ErrNotPinned)
	}},
}
