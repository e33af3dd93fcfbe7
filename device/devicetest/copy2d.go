package devicetest

import (
	"bytes"
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

// grid is one side of a strided copy: the bytes before the first row, and from one row to the next.
type grid struct{ offset, pitch int64 }

var copy2DTests = []test{
	{"up, inside and down, at any width and pitch, without touching the bytes between rows", func(f *fixture) {
		const room = 8 << 10
		s, p, q := f.stream(), f.alloc(room), f.alloc(room)
		up, down := f.pinned(room), f.pinned(room)
		pattern(up)
		for _, size := range [][2]int64{{1, 1}, {1, 50}, {7, 13}, {16, 32}, {64, 3}, {1000, 1}, {256, 8}, {100, 20}} {
			width, height := size[0], size[1]
			for _, x := range [][2]grid{{{0, width}, {0, width}}, {{0, width + 1}, {3, width}}, {{5, width}, {0, width + 24}},
				{{8, 2 * width}, {4, width + 7}}} {
				to, from := x[0], x[1]
				// rows returns background with the rows of src.
				rows := func(background byte, src []byte, to, from grid) []byte {
					want := filled(room, background)
					for i := range height {
						copy(want[to.offset+i*to.pitch:][:width], src[from.offset+i*from.pitch:])
					}
					return want
				}
				require.NoError(f, s.Memset(p, 0xAA, room))
				require.NoError(f, s.Copy2D(&device.Copy2D{Width: width, Height: height, DstPitch: to.pitch, SrcPitch: from.pitch,
					Dst: p + device.Ptr(to.offset), SrcHost: up[from.offset:]}))
				onDevice := rows(0xAA, up, to, from)
				f.same(onDevice, f.read(s, p, room))

				require.NoError(f, s.Memset(q, 0xBB, room))
				require.NoError(f, s.Copy2D(&device.Copy2D{Width: width, Height: height, DstPitch: from.pitch, SrcPitch: to.pitch,
					Dst: q + device.Ptr(from.offset), Src: p + device.Ptr(to.offset)}))
				f.same(rows(0xBB, onDevice, from, to), f.read(s, q, room))

				copy(down, filled(room, 0xCC))
				require.NoError(f, s.Copy2D(&device.Copy2D{Width: width, Height: height, DstPitch: from.pitch, SrcPitch: to.pitch,
					DstHost: down[from.offset:], Src: p + device.Ptr(to.offset)}))
				f.synchronize(s)
				f.same(rows(0xCC, onDevice, from, to), down)
			}
		}
	}},
	{"Copy2D keeps its place in the stream", func(f *fixture) {
		const n = 64 * 64
		s, p, q, host := f.stream(), f.alloc(n), f.alloc(n), f.pinned(n)
		copy(host, filled(n, 5))
		release := f.block(s)
		require.NoError(f, s.Memset(p, 1, n))
		c := device.Copy2D{Width: 16, Height: 64, Dst: p, DstPitch: 64, SrcHost: host, SrcPitch: 16}
		require.NoError(f, s.Copy2D(&c))
		c = device.Copy2D{} // it may be reused
		f.addOne(s, p, n)
		require.NoError(f, s.Copy2D(&device.Copy2D{Width: 32, Height: 64, Dst: q, DstPitch: 32, Src: p, SrcPitch: 64}))
		require.NoError(f, s.Memset(p, 9, n))
		require.NoError(f, s.Copy2D(&device.Copy2D{Width: 32, Height: 64, DstHost: host, DstPitch: 64, Src: q, SrcPitch: 32}))
		require.NoError(f, s.Memset(q, 9, n))
		require.False(f, f.done(s), "the calls don't wait for the work")
		release()
		f.synchronize(s)
		row := append(append(filled(16, 6), filled(16, 2)...), filled(32, 5)...)
		f.same(bytes.Repeat(row, 64), host)
	}},
	{"the last row ends with its bytes, not with its pitch", func(f *fixture) {
		const width, pitch, height = 10, 100, 4
		const n = (height-1)*pitch + width
		s, p, host := f.stream(), f.alloc(n), f.pinned(n)
		good := device.Copy2D{Width: width, Height: height, Dst: p, DstPitch: pitch, SrcHost: host, SrcPitch: pitch}
		require.NoError(f, s.Copy2D(&good))
		good = device.Copy2D{Width: width, Height: height, DstHost: host, DstPitch: pitch, Src: p, SrcPitch: pitch}
		require.NoError(f, s.Copy2D(&good))
		good.Src++
		f.refused(s.Copy2D(&good), device.ErrInvalid)
		good.Src--
		good.DstHost = host[1:]
		e := f.refused(s.Copy2D(&good), device.ErrInvalid)
		require.Contains(f, e.Detail, "309 bytes")
		require.Contains(f, e.Detail, "take 310")
	}},
	{"no rows, or rows of no bytes, copy nothing", func(f *fixture) {
		s, p, host := f.stream(), f.alloc(16), f.pinned(16)
		release := f.block(s)
		e := f.recorded(s)
		for _, size := range [][2]int64{{0, 0}, {0, 5}, {8, 0}, {0, math.MaxInt64}, {8, 0}} {
			c := device.Copy2D{Width: size[0], Height: size[1], DstPitch: 8, SrcPitch: 8}
			require.NoError(f, s.Copy2D(&c), "not even memory is needed")
			c.Dst, c.Src = p, p
			require.NoError(f, s.Copy2D(&c))
			c.Dst, c.DstHost = 0, host
			require.NoError(f, s.Copy2D(&c))
		}
		release()
		f.synchronize(e)
	}},
	{"an invalid Copy2D is refused with the reason, and nothing is queued", func(f *fixture) {
		const n = 4096
		s, p, q, host := f.stream(), f.alloc(n), f.alloc(n), f.pinned(n)
		clear(host)
		f.fill(s, p, n, 9)
		f.fill(s, q, n, 8)
		f.synchronize(s)
		registered := make([]byte, 512)
		require.NoError(f, f.dev.Register(registered[:256]))
		const huge = math.MaxInt64
		for _, wrong := range []struct {
			c    device.Copy2D
			says string
		}{
			{device.Copy2D{Width: -1, Height: 2, Dst: p, DstPitch: 8, Src: q, SrcPitch: 8}, "2 rows of -1 bytes"},
			{device.Copy2D{Width: 8, Height: -2, Dst: p, DstPitch: 8, Src: q, SrcPitch: 8}, "-2 rows of 8 bytes"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 7, Src: q, SrcPitch: 8}, "the destination's pitch is 7 bytes"},
			{device.Copy2D{Width: 8, Height: 1, Dst: p, DstPitch: 8, Src: q, SrcPitch: 7}, "the source's pitch is 7 bytes"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, Src: q, SrcPitch: -8}, "the source's pitch is -8 bytes"},
			{device.Copy2D{Width: 8, Height: 0, Dst: p, DstPitch: 8, Src: q}, "the source's pitch is 0 bytes"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstHost: host, DstPitch: 8, Src: q, SrcPitch: 8}, "two destinations"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, Src: q, SrcHost: host, SrcPitch: 8}, "two sources"},
			{device.Copy2D{Width: 8, Height: 2, DstHost: host, DstPitch: 8, SrcHost: host[99:], SrcPitch: 8}, "both on the host"},
			{device.Copy2D{Width: 8, Height: 2, DstPitch: 8, Src: q, SrcPitch: 8}, "no destination"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, SrcPitch: 8}, "no source"},
			{device.Copy2D{Width: 8, Height: 2, DstHost: host[:15], DstPitch: 8, Src: q, SrcPitch: 8}, "take 16"},
			{device.Copy2D{Width: 8, Height: 2, DstHost: host[:0], DstPitch: 8, Src: q, SrcPitch: 8}, "has 0 bytes"},
			{device.Copy2D{Width: 8, Height: 3, Dst: p, DstPitch: 8, SrcHost: host[:63], SrcPitch: 28}, "take 64"},
			{device.Copy2D{Width: 8, Height: huge, Dst: p, DstPitch: 8, Src: q, SrcPitch: 8}, "more than any memory"},
			{device.Copy2D{Width: 8, Height: 3, Dst: p, DstPitch: huge, Src: q, SrcPitch: 8}, "more than any memory"},
			{device.Copy2D{Width: 8, Height: 1 << 32, Dst: p, DstPitch: 8, Src: q, SrcPitch: 1 << 32}, "more than any memory"},
			{device.Copy2D{Width: huge, Height: 2, Dst: p, DstPitch: huge, Src: q, SrcPitch: huge}, "more than any memory"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: n, Src: q, SrcPitch: 8}, ""},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, Src: q, SrcPitch: n}, ""},
			{device.Copy2D{Width: 1 << 40, Height: 1, Dst: p, DstPitch: huge, Src: q, SrcPitch: huge}, ""},
			{device.Copy2D{Width: 8, Height: 2, Dst: ^device.Ptr(0), DstPitch: 8, Src: q, SrcPitch: 8}, ""},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 100, Src: p + 107, SrcPitch: 8}, "107 bytes apart; ranges of 108 and 16 bytes overlap"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p + 15, DstPitch: 100, Src: p, SrcPitch: 8}, "15 bytes apart"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p + 8, DstPitch: 16, Src: p, SrcPitch: 16}, "8 bytes apart"},
			{device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, Src: p, SrcPitch: 8}, "0 bytes apart"},
		} {
			e := f.refused(s.Copy2D(&wrong.c), device.ErrInvalid)
			require.Contains(f, e.Detail, wrong.says)
			require.Equal(f, "Copy2D", e.Op)
			require.Equal(f, device.CodeInvalidValue, e.Code)
		}
		f.refused(s.Copy2D(nil), device.ErrInvalid)
		f.refused(s.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 8, SrcHost: make([]byte, 64), SrcPitch: 8}), device.ErrNotPinned)
		f.refused(s.Copy2D(&device.Copy2D{Width: 8, Height: 2, DstHost: make([]byte, 64), DstPitch: 8, Src: p, SrcPitch: 8}), device.ErrNotPinned)
		part := device.Copy2D{Width: 8, Height: 2, DstHost: registered, DstPitch: 249, Src: p, SrcPitch: 8}
		f.refused(s.Copy2D(&part), device.ErrNotPinned) // its last byte is not pinned
		require.True(f, f.done(s), "nothing was queued")
		f.same(filled(n, 9), f.read(s, p, n))
		f.same(filled(n, 8), f.read(s, q, n))
		f.same(make([]byte, n), host)
		part.DstPitch = 248
		require.NoError(f, s.Copy2D(&part))
		require.NoError(f, s.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p, DstPitch: 100, Src: p + 108, SrcPitch: 8}))
		require.NoError(f, s.Copy2D(&device.Copy2D{Width: 8, Height: 2, Dst: p + 16, DstPitch: 100, Src: p, SrcPitch: 8}))
		require.NoError(f, f.dev.Unregister(registered))
	}},
}
