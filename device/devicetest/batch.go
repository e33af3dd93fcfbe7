package devicetest

import (
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
)

var batchTests = []test{
	{"copies every range, as one operation", func(f *fixture) {
		s, batch := f.batch()
		const n, each = 300, 37
		p, host := f.alloc(n*each), f.pinned(n*each)
		var dst [][]byte
		var src []device.Ptr
		for i := range n {
			f.fill(s, p+device.Ptr(i*each), each, byte(i))
			from := (n - 1 - i) * each                       // in another order
			dst = append(dst, host[from:from+each-i%2*each]) // every second is empty
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
	{"one wrong range and nothing is queued", func(f *fixture) {
		s, batch := f.batch()
		p, host := f.alloc(64), f.pinned(64)
		clear(host)
		f.fill(s, p, 64, 9)
		f.synchronize(s)
		good, at := host[:10], p
		f.refused(batch.CopyD2HBatch([][]byte{good, host[10:20]}, []device.Ptr{at}), device.ErrInvalid)
		f.refused(batch.CopyD2HBatch([][]byte{good, host[10:20]}, []device.Ptr{at, p + 60}), device.ErrInvalid)
		f.refused(batch.CopyD2HBatch([][]byte{good, make([]byte, 5)}, []device.Ptr{at, p}), device.ErrNotPinned)
		require.True(f, f.done(s))
		f.synchronize(s)
		f.same(filled(64, 0), host)
	}},
}

// batch is a stream that copies batches.
func (f *fixture) batch() (device.Stream, device.BatchCopier) {
	s := f.stream()
	b, ok := s.(device.BatchCopier)
	if !ok {
		f.Skip("the backend copies no batches")
	}
	return s, b
}
