package transfer_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

// within reports whether [offset, offset+n) lies in size, without overflowing.
func within(offset, n, size int64) bool {
	return offset >= 0 && n >= 0 && offset <= size && n <= size-offset
}

// Any ranges of a batch's upload, output and collection: right contents, or ErrRange and nothing changed.
func FuzzBatchRanges(f *testing.F) {
	const blockBytes = 1024
	r := newRig(f, transfer.Config{})
	block, err := r.cache.Alloc(f.Context(), blockBytes, r.a)
	require.NoError(f, err)
	f.Cleanup(func() { require.NoError(f, block.Free()) })
	for _, c := range [][8]int64{
		{0, 100, 100, 0, 100, 100, 0, 100}, {7, 100, 300, 5, 10, 400, 3, 7}, {0, 1024, 1024, 0, 1024, 1024, 1024, 0},
		{0, 1025, 1025, 0, 0, 0, 0, 0}, {1, 1000, 1024, 1, 1024, 1024, 0, 1}, {0, 100, 99, 0, 10, 9, 0, 1}, {-1, 1, 1, -1, 1, 1, -1, 1},
		{0, 5, -5, 0, -5, 5, 0, -5}, {math.MaxInt64, 1, 1, math.MaxInt64, 1, 1, 1, 1}, {1, 0, math.MaxInt64, 1, 0, math.MaxInt64, 0, 0},
		{1024, 0, 0, 1024, 0, 0, 0, 0}, {1025, 0, 0, 1025, 0, 0, 1, 0}, {0, 1, 1, 0, 10, 10, math.MaxInt64, math.MaxInt64},
		{0, 1, 1, 0, 10, 20, 9, 2}, {math.MinInt64, 1, math.MinInt64, math.MinInt64, 1, math.MinInt64, math.MinInt64, math.MinInt64},
	} {
		f.Add(c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7])
	}
	f.Fuzz(func(t *testing.T, upAt, upBytes, upSize, outAt, outBytes, outSize, at, n int64) {
		ctx := t.Context()
		_, err := r.pool.Fill(ctx, r.a, block, 0, blockBytes, 0xaa)
		require.NoError(t, err)
		want := bytes.Repeat([]byte{0xaa}, blockBytes)
		data := fill(make([]byte, max(0, upBytes%2000)), byte(upAt))
		b := r.pool.NewBatch()
		defer func() {
			require.NoError(t, b.Close())
			require.NoError(t, r.a.Synchronize(ctx))
			idle(t, r.pool)
		}()
		err = b.UploadPadded(ctx, block, upAt, data, upSize)
		if int64(len(data)) <= upSize && within(upAt, upSize, blockBytes) {
			require.NoError(t, err)
			clear(want[upAt : upAt+upSize])
			copy(want[upAt:], data)
		} else {
			require.ErrorIs(t, err, transfer.ErrRange)
		}
		index, outErr := b.OutputPadded(ctx, block, outAt, outBytes, outSize)
		fits := outBytes >= 0 && outBytes <= outSize && within(outAt, outSize, blockBytes)
		if !fits {
			require.ErrorIs(t, outErr, transfer.ErrRange)
		}
		_, err = b.Submit(ctx, r.a)
		require.NoError(t, err)
		require.Equal(t, want, r.read(t, r.a, block))
		got := []byte{1, 2, 3}
		err = b.CollectRange(ctx, index, at, n, &got)
		if fits && within(at, n, outBytes) {
			require.NoError(t, err)
			require.True(t, bytes.Equal(want[outAt+at:outAt+at+n], got))
		} else {
			require.ErrorIs(t, err, transfer.ErrRange)
			require.Equal(t, []byte{1, 2, 3}, got)
		}
	})
}
