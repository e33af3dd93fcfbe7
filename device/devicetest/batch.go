package devicetest

import (
	"bytes"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var batchTests = []test{
	{"copies every range down, as one operation", func(f *fixture) {
		s, batch := f.batch()
		const n, each = 300, 37
		p, host := f.alloc(n*each), f.pinned(n*each)
		var dst [][]byte
		var src []device.Ptr
		for i := range n {
			f.fill(s, p+device.Ptr(i*each), each, byte(i))
			from := (n - 1 - i) * each                       // in another order
			dst = append(dst, host[from:from+each-i%2*each]) // every second one is empty
			src = append(src, p+device.Ptr(i*each))
		}
		require.NoError(f, batch.CopyD2HBatch(dst, src))
		f.synchronize(s)
		for i := range n {
			f.same(filled(int64(len(dst[i])), byte(i)), dst[i])
		}
		require.NoError(f, batch.CopyD2HBatch(nil, nil))
		require.NoError(f, batch.CopyD2HBatch([][]byte{nil}, []device.Ptr{p}))
	}},
	{"copies every range up, as one operation", func(f *fixture) {
		s, batch := f.batch()
		const n, each = 300, 37
		p, host := f.alloc(n*each), f.pinned(n*each)
		want := filled(n*each, 0xEE)
		require.NoError(f, s.Memset(p, 0xEE, n*each))
		var dst []device.Ptr
		var src [][]byte
		for i := range n {
			to := (n - 1 - i) * each // in another order
			b := host[i*each : (i+1)*each-i%2*each]
			copy(b, filled(each, byte(i)))
			copy(want[to:], b)
			dst = append(dst, p+device.Ptr(to))
			src = append(src, b)
		}
		require.NoError(f, batch.CopyH2DBatch(dst, src))
		f.same(want, f.read(s, p, n*each))
		require.NoError(f, batch.CopyH2DBatch(nil, nil))
		require.NoError(f, batch.CopyH2DBatch([]device.Ptr{p}, [][]byte{nil}))
	}},
	{"at any size and offset, both ways, without touching other bytes", func(f *fixture) {
		s, batch := f.batch()
		lengths := slices.Concat(sizes, []int64{16, 48, 2052, 64 << 10, 64<<10 + 1})
		// Offsets in host and device memory.
		offsets := [][2]int64{{0, 0}, {0, 4}, {8, 8}, {8, 16}, {4, 4}, {3, 3}, {1, 0}, {2, 6}}
		// Space for an offset, and up to the next multiple of 16.
		const room = 32
		total := int64(0)
		for _, n := range lengths {
			total += (n + room) * int64(len(offsets))
		}
		p, up, down := f.alloc(total), f.pinned(total), f.pinned(total)
		pattern(up)
		copy(down, filled(total, 0xEE))
		want := bytes.Clone(down)
		require.NoError(f, s.Memset(p, 0xEE, total))
		var host, back [][]byte
		var dev []device.Ptr
		at := int64(0)
		for _, n := range lengths {
			for _, offset := range offsets {
				h, d := at+offset[0], at+offset[1]
				host, dev, back = append(host, up[h:h+n]), append(dev, p+device.Ptr(d)), append(back, down[h:h+n])
				copy(want[h:], up[h:h+n])
				at = (at + n + room) / 16 * 16
			}
		}
		require.NoError(f, batch.CopyH2DBatch(dev, host))
		require.NoError(f, batch.CopyD2HBatch(back, dev))
		got := f.read(s, p, total)
		f.same(want, down)
		gaps := filled(total, 0xEE)
		for i, d := range dev {
			copy(gaps[d-p:], host[i])
		}
		f.same(gaps, got)
	}},
	{"a batch keeps its place in the stream", func(f *fixture) {
		s, batch := f.batch()
		const n = 512
		p, a, b := f.alloc(2*n), f.pinned(2*n), f.pinned(2*n)
		copy(a, filled(2*n, 5))
		dev := []device.Ptr{p, p + n}
		release := f.block(s)
		require.NoError(f, s.Memset(p, 1, 2*n))
		require.NoError(f, batch.CopyH2DBatch(dev, [][]byte{a[:n], a[n:]}))
		f.addOne(s, p, 2*n)
		require.NoError(f, batch.CopyD2HBatch([][]byte{b[n:], b[:n]}, dev))
		require.NoError(f, s.Memset(p, 9, 2*n))
		require.False(f, f.done(s), "the calls don't wait for the work")
		release()
		f.synchronize(s)
		f.same(filled(2*n, 6), b)
	}},
	{"one wrong range refuses the whole batch", func(f *fixture) {
		s, batch := f.batch()
		p, host := f.alloc(64), f.pinned(64)
		clear(host)
		f.fill(s, p, 64, 9)
		f.synchronize(s)
		good, at := host[:10], p
		for _, wrong := range []struct {
			class error
			host  [][]byte
			dev   []device.Ptr
		}{
			{device.ErrInvalid, [][]byte{good, host[10:20]}, []device.Ptr{at}},
			{device.ErrInvalid, [][]byte{good}, []device.Ptr{at, at}},
			{device.ErrInvalid, [][]byte{good, host[10:20]}, []device.Ptr{at, p + 60}},
			{device.ErrInvalid, [][]byte{good, host[10:20], host[20:30]}, []device.Ptr{at, 0, p + 30}},
			{device.ErrNotPinned, [][]byte{good, make([]byte, 5)}, []device.Ptr{at, p}},
		} {
			f.refused(batch.CopyD2HBatch(wrong.host, wrong.dev), wrong.class)
			f.refused(batch.CopyH2DBatch(wrong.dev, wrong.host), wrong.class)
			require.True(f, f.done(s))
		}
		f.same(filled(64, 9), f.read(s, p, 64))
		f.same(filled(64, 0), host)
	}},
}

// batch returns a stream that copies batches.
func (f *fixture) batch() (device.Stream, device.BatchCopier) {
	s := f.stream()
	b, ok := s.(device.BatchCopier)
	if !ok {
		f.Skip("the backend copies no batches")
	}
	return s, b
}
