package transfer_test

import (
	"bytes"
	"errors"
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Rows are copied to the right offsets, and bytes between them are unchanged.
func TestStrided(t *testing.T) {
	r := newRig(t, transfer.Config{})
	from, to := r.alloc(t, 8192, r.a), r.alloc(t, 8192, r.a)
	up, down := r.get(t, 8192), r.get(t, 8192)
	for _, rows := range []transfer.Rows{
		{1, 1, 1, 1}, {100, 1, 100, 100}, {1, 100, 7, 3}, {33, 20, 40, 50}, {64, 64, 64, 64}, {64, 50, 64, 100}, {3, 0, 3, 3}, {0, 5, 0, 9},
	} {
		for _, f := range []memcache.Block{from, to} {
			_, err := r.pool.Fill(t.Context(), r.a, f, 0, 8192, 0xaa)
			require.NoError(t, err)
		}
		data := fill(up.Bytes(), byte(rows.Width))
		fill(down.Bytes(), 77)
		// Upload with rows, copy with rows of swapped pitches, and read back with rows.
		back := transfer.Rows{Width: rows.Width, Height: rows.Height, DstPitch: rows.SrcPitch, SrcPitch: rows.DstPitch}
		onDevice := [2][]byte{bytes.Repeat([]byte{0xaa}, 8192), bytes.Repeat([]byte{0xaa}, 8192)}
		want := fill(make([]byte, 8192), 77)
		move(onDevice[0], 11, data, 5, rows)
		move(onDevice[1], 13, onDevice[0], 11, back)
		move(want, 17, onDevice[1], 13, rows)
		before := r.pool.Stats()
		a, err := r.pool.H2DStrided(t.Context(), r.a, from, 11, up, 5, rows)
		require.NoError(t, err)
		b, err := r.pool.D2DStrided(t.Context(), r.a, to, 13, from, 11, back)
		require.NoError(t, err)
		c, err := r.pool.D2HStrided(t.Context(), r.a, down, 17, to, 13, rows)
		require.NoError(t, err)
		n := rows.Width * rows.Height
		require.Equal(t, [3]int64{n, n, n}, [3]int64{a.Bytes(), b.Bytes(), c.Bytes()})
		require.NoError(t, down.Wait(t.Context()))
		require.Equal(t, want, down.Bytes())
		require.Equal(t, onDevice[0], r.read(t, r.a, from))
		require.Equal(t, onDevice[1], r.read(t, r.a, to))
		require.NoError(t, up.Wait(t.Context()))
		st := r.pool.Stats()
		require.Equal(t, n, st.D2DBytes-before.D2DBytes)
		require.Equal(t, n, st.H2DBytes-before.H2DBytes)
	}
	for _, f := range []interface{ Free() error }{from, to} {
		require.NoError(t, f.Free())
	}
	require.NoError(t, up.Release())
	require.NoError(t, down.Release())
}

// TestStridedRanges: rows that end with the last byte are copied, and rows that end one byte after
// it are refused, on each side.
func TestStridedRanges(t *testing.T) {
	r := newRig(t, transfer.Config{})
	a, b, buf := r.alloc(t, 512, r.a), r.alloc(t, 512, r.a), r.get(t, 512)
	rows := transfer.Rows{Width: 12, Height: 6, DstPitch: 100, SrcPitch: 100} // 512 bytes
	for name, call := range map[string]func(dst, src int64) (*transfer.Copy, error){
		"H2D": func(dst, src int64) (*transfer.Copy, error) {
			return r.pool.H2DStrided(t.Context(), r.a, a, dst, buf, src, rows)
		},
		"D2H": func(dst, src int64) (*transfer.Copy, error) {
			return r.pool.D2HStrided(t.Context(), r.a, buf, dst, a, src, rows)
		},
		"D2D": func(dst, src int64) (*transfer.Copy, error) {
			return r.pool.D2DStrided(t.Context(), r.a, a, dst, b, src, rows)
		},
	} {
		_, err := call(0, 0)
		require.NoError(t, err, name)
		for _, at := range [][2]int64{{1, 0}, {0, 1}, {-1, 0}, {0, -1}} {
			_, err = call(at[0], at[1])
			require.ErrorIs(t, err, transfer.ErrRange, "%s to %d from %d", name, at[0], at[1])
		}
	}
	require.NoError(t, errors.Join(a.Free(), b.Free(), buf.Release()))
}

// move models a strided copy.
func move(dst []byte, at int64, src []byte, from int64, rows transfer.Rows) {
	for i := range rows.Height {
		copy(dst[at+i*rows.DstPitch:][:rows.Width], src[from+i*rows.SrcPitch:])
	}
}

func FuzzStrided(f *testing.F) {
	r := newRig(f, transfer.Config{})
	block, err := r.cache.Alloc(f.Context(), 1024, r.a)
	require.NoError(f, err)
	other, err := r.cache.Alloc(f.Context(), 1024, r.a)
	require.NoError(f, err)
	b := r.get(f, 1000)
	f.Cleanup(func() {
		require.NoError(f, b.Release())
		require.NoError(f, block.Free())
		require.NoError(f, other.Free())
	})
	for _, c := range [][6]int64{
		{0, 0, 10, 10, 10, 20}, {24, 0, 100, 10, 100, 100}, {25, 0, 100, 10, 100, 100}, {0, 1, 100, 10, 100, 100},
		{0, 0, 5, 4, 4, 5}, {0, 0, 5, 4, 5, 4}, {-1, 0, 1, 1, 1, 1}, {0, -1, 1, 1, 1, 1}, {0, 0, -1, 1, 1, 1}, {0, 0, 1, -1, 1, 1},
		{0, 0, math.MaxInt64, 2, math.MaxInt64, math.MaxInt64}, {0, 0, 1, math.MaxInt64, 1 << 62, 1}, {0, 0, 1 << 62, 4, 1 << 62, 1 << 62},
		{0, 0, 1, math.MaxInt64, 1, 1}, {0, 0, 0, math.MaxInt64, 0, 0}, {0, 0, math.MaxInt64, 0, math.MaxInt64, math.MaxInt64},
		{0, 0, 0, 5, 1000, 1000}, {0, 0, 5, 0, 9, 9}, {0, 0, 0, -1, 0, 0}, {0, 0, -1, 0, 0, 0},
		{1024, 1000, 0, 1, 0, 0}, {1025, 0, 0, 1, 0, 0}, {0, 1001, 1, 0, 1, 1}, {math.MaxInt64, 0, 1, 1, 1, 1}, {0, 0, 0, 1, -1, 0},
	} {
		f.Add(c[0], c[1], c[2], c[3], c[4], c[5])
	}
	span := func(rows transfer.Rows, pitch int64) *big.Int {
		if rows.Width == 0 || rows.Height == 0 {
			return new(big.Int)
		}
		n := new(big.Int).Mul(big.NewInt(rows.Height-1), big.NewInt(pitch))
		return n.Add(n, big.NewInt(rows.Width))
	}
	fits := func(offset int64, n *big.Int, size int64) bool {
		return offset >= 0 && n.Add(n, big.NewInt(offset)).Cmp(big.NewInt(size)) <= 0
	}
	f.Fuzz(func(t *testing.T, dst, src, width, height, dstPitch, srcPitch int64) {
		rows := transfer.Rows{Width: width, Height: height, DstPitch: dstPitch, SrcPitch: srcPitch}
		sane := width >= 0 && height >= 0 && dstPitch >= width && srcPitch >= width
		_, err := r.pool.Fill(t.Context(), r.a, block, 0, 1024, 3)
		require.NoError(t, err)
		require.NoError(t, b.Wait(t.Context()))
		data := append([]byte(nil), fill(b.Bytes(), 9)...)
		before := r.pool.Stats()
		_, err = r.pool.H2DStrided(t.Context(), r.a, block, dst, b, src, rows)
		want := bytes.Repeat([]byte{3}, 1024)
		if sane && fits(dst, span(rows, dstPitch), 1024) && fits(src, span(rows, srcPitch), 1000) {
			require.NoError(t, err)
			if width > 0 {
				move(want, dst, data, src, rows)
			}
		} else {
			require.ErrorIs(t, err, transfer.ErrRange)
			require.Equal(t, before, r.pool.Stats())
		}
		require.Equal(t, want, r.read(t, r.a, block))
		_, err = r.pool.D2DStrided(t.Context(), r.a, other, dst, block, src, rows)
		inside := sane && fits(dst, span(rows, dstPitch), 1024) && fits(src, span(rows, srcPitch), 1024)
		require.Equal(t, inside, err == nil, "%v", err)
		_, err = r.pool.D2HStrided(t.Context(), r.a, b, dst, block, src, rows)
		inside = sane && fits(dst, span(rows, dstPitch), 1000) && fits(src, span(rows, srcPitch), 1024)
		require.Equal(t, inside, err == nil, "%v", err)
		require.NoError(t, r.a.Synchronize(t.Context()))
	})
}

// Copies inside the device and fills: contents, blocks that are freed at once, ranges, and
// statistics.
func TestDeviceCopies(t *testing.T) {
	r := newRig(t, transfer.Config{})
	a, b := r.alloc(t, 4096, r.a), r.alloc(t, 4096, r.a)
	_, err := r.pool.Upload(t.Context(), r.a, a, 0, fill(make([]byte, 4096), 1))
	require.NoError(t, err)
	_, err = r.pool.Fill(t.Context(), r.a, b, 0, 4096, 9)
	require.NoError(t, err)
	c, err := r.pool.D2D(t.Context(), r.a, b, 100, a, 7, 1000)
	require.NoError(t, err)
	require.EqualValues(t, 1000, c.Bytes())
	_, err = r.pool.D2D(t.Context(), r.a, b, 2000, b, 100, 1000) // within one block
	require.NoError(t, err)
	f, err := r.pool.Fill(t.Context(), r.a, b, 4000, 96, 5)
	require.NoError(t, err)
	require.EqualValues(t, 96, f.Bytes())
	want := bytes.Repeat([]byte{9}, 4096)
	copy(want[100:], fill(make([]byte, 4096), 1)[7:1007])
	copy(want[2000:3000], want[100:])
	copy(want[4000:], bytes.Repeat([]byte{5}, 96))
	require.Equal(t, want, r.read(t, r.a, b))
	st := r.pool.Stats()
	require.Equal(t, [4]int64{2, 2000, 1, 1}, [4]int64{st.D2DCopies, st.D2DBytes, st.H2DCopies, st.D2HCopies}, "fills are no copies")
	_, err = r.pool.D2D(t.Context(), r.a, b, 0, b, 1, 2)
	require.ErrorIs(t, err, device.ErrInvalid, "overlapping")
	require.Equal(t, want, r.read(t, r.a, b))

	// On another stream that has not begun: neither block is reused.
	open := cisterntest.Hold(t, r.b)
	_, err = r.pool.D2D(t.Context(), r.b, b, 0, a, 0, 4096)
	require.NoError(t, err)
	filled := r.alloc(t, 4096, r.a)
	_, err = r.pool.Fill(t.Context(), r.b, filled, 0, 4096, 1)
	require.NoError(t, err)
	for _, block := range []memcache.Block{a, b, filled} {
		require.NoError(t, block.Free())
		next := r.alloc(t, 4096, r.a)
		for _, busy := range []memcache.Block{a, b, filled} {
			require.NotEqual(t, busy.Ptr(), next.Ptr(), "handed out under a copy")
		}
		defer next.Free()
	}
	open()
	for _, call := range []func() (*transfer.Copy, error){
		func() (*transfer.Copy, error) { return r.pool.D2D(t.Context(), r.a, a, 0, filled, 0, 1) },
		func() (*transfer.Copy, error) { return r.pool.Fill(t.Context(), r.a, a, 0, 1, 0) },
	} {
		_, err = call()
		require.ErrorIs(t, err, memcache.ErrFreed)
	}
	require.NoError(t, r.b.Synchronize(t.Context()))
}
