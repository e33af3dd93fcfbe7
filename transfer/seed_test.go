package transfer_test

import (
	"io"
	"math"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Buffers over a class's or the cache's limit are freed at once; EmptyCache frees the rest.
func TestSeedBudgetAndSlots(t *testing.T) {
	r := newRig(t, transfer.Config{MaxCachedBuffers: 3, MaxCachedBytes: 16 << 10})
	get := func(n int, bytes int64) {
		var bufs []transfer.Buffer
		for range n {
			bufs = append(bufs, r.get(t, bytes))
		}
		for _, b := range bufs {
			require.NoError(t, b.Release())
		}
	}
	check := func(cached, frees int64) {
		t.Helper()
		idle(t, r.pool)
		st := r.pool.Stats()
		require.Equal(t, [2]int64{cached, frees}, [2]int64{st.CachedBytes.Current, st.HostFrees})
	}
	get(5, 1000)
	check(3<<10, 2)
	get(2, 64)
	check(3<<10+128, 2)
	get(1, 16<<10+1)
	check(3<<10+128, 3)
	get(1, 16<<10) // as large as the budget: everything else is freed
	check(16<<10, 3+5)
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	check(0, 9)
}

// An allocation takes less than 12.5 % more than was asked for, where powers of two take up to 100 %.
func TestSeedRounding(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for _, n := range []int64{513, 1025, 65_537, 1<<20 + 1} {
		b := r.get(t, n)
		require.Less(t, r.pool.Stats().ActiveBytes.Current*8, n*9+8)
		require.NoError(t, b.Release())
	}
}

// Pinned memory belongs to no thread and no stream: each of them may copy from it.
func TestSeedPortable(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 4096)
	want := fill(b.Bytes(), 9)[:4096:4096]
	want = append([]byte(nil), want...)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			s := r.stream(t)
			block, err := r.cache.Alloc(t.Context(), 4096, s)
			if err != nil {
				t.Error(err)
				return
			}
			got := make([]byte, 4096)
			_, err = r.pool.H2D(t.Context(), s, block, 0, b, 0, 4096)
			if err == nil {
				err = r.pool.Download(t.Context(), s, got, block, 0)
			}
			if err != nil || string(got) != string(want) {
				t.Error("wrong contents", err)
			}
			for _, err := range []error{block.Free(), s.Close()} {
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	require.NoError(t, b.Release())
}

// Every range is checked, even if its end would overflow, and an error has the valid size.
func TestSeedRangesAreChecked(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, block := r.get(t, 512), r.alloc(t, 512, r.a)
	fill(b.Bytes(), 1)
	before := r.pool.Stats()
	for _, c := range []struct{ offset, bytes int64 }{
		{-1, 1}, {0, 513}, {512, 1}, {513, 0}, {math.MaxInt64, 1}, {1, math.MaxInt64}, {math.MinInt64, 1},
		{math.MaxInt64, math.MaxInt64}, {-8, 8}, {256, 257},
	} {
		errs := map[string]error{"Zero": b.Zero(c.offset, c.bytes)}
		_, errs["Range"] = b.Range(c.offset, c.bytes)
		_, errs["H2D"] = r.pool.H2D(t.Context(), r.a, block, 0, b, c.offset, c.bytes)
		_, errs["H2D to"] = r.pool.H2D(t.Context(), r.a, block, c.offset, b, 0, c.bytes)
		_, errs["D2H"] = r.pool.D2H(t.Context(), r.a, b, c.offset, block, 0, c.bytes)
		_, errs["D2D"] = r.pool.D2D(t.Context(), r.a, block, c.offset, block, 0, c.bytes)
		_, errs["Fill"] = r.pool.Fill(t.Context(), r.a, block, c.offset, c.bytes, 1)
		if c.bytes <= 1000 {
			_, errs["WriteAt"] = b.WriteAt(make([]byte, c.bytes), c.offset)
			errs["PutWords"] = transfer.PutWords(b, c.offset, make([]uint16, (c.bytes+1)/2))
			errs["GetWords"] = transfer.GetWords(b, c.offset, make([]uint16, (c.bytes+1)/2))
			_, errs["Upload"] = r.pool.Upload(t.Context(), r.a, block, c.offset, make([]byte, c.bytes))
			errs["Download"] = r.pool.Download(t.Context(), r.a, make([]byte, c.bytes), block, c.offset)
		}
		for call, err := range errs {
			require.ErrorIs(t, err, transfer.ErrRange, "%s of %v", call, c)
			require.Regexp(t, `: -?\d+ bytes at offset -?\d+ of .*: it has 512 bytes$`, err.Error(), "%s of %v", call, c)
		}
	}
	require.Equal(t, before, r.pool.Stats())
	require.Equal(t, fill(make([]byte, 512), 1), b.Bytes())
	got := make([]byte, 10)
	n, err := b.ReadAt(got, 507)
	require.Equal(t, 5, n)
	require.Equal(t, io.EOF, err)
	require.Equal(t, append(fill(make([]byte, 512), 1)[507:], 0, 0, 0, 0, 0), got)
	_, err = b.ReadAt(got, 513)
	require.ErrorIs(t, err, transfer.ErrRange)
	_, err = b.ReadAt(got, -1)
	require.ErrorIs(t, err, transfer.ErrRange)
	require.NoError(t, b.Zero(10, 20))
	want := fill(make([]byte, 512), 1)
	clear(want[10:30])
	require.Equal(t, want, b.Bytes())
	require.NoError(t, b.Release())
	_, err = b.ReadAt(got, 0)
	require.ErrorIs(t, err, transfer.ErrReleased)
	require.ErrorIs(t, b.Zero(0, 1), transfer.ErrReleased)
	require.NoError(t, block.Free())
}

// Words are little-endian on every host.
func TestSeedWords(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.get(t, 40)
	clear(b.Bytes())
	require.NoError(t, transfer.PutWords(b, 1, []uint32{0x04030201, 0xfffefdfc}))
	require.NoError(t, transfer.PutWords(b, 9, []uint16{0x0605}))
	require.NoError(t, transfer.PutWords(b, 11, []uint64{0x0807060504030201}))
	require.NoError(t, transfer.PutWords[uint64](b, 40, nil))
	require.Equal(t, []byte{0, 1, 2, 3, 4, 0xfc, 0xfd, 0xfe, 0xff, 5, 6, 1, 2, 3, 4, 5, 6, 7, 8, 0}, b.Bytes()[:20])
	words := make([]uint32, 2)
	require.NoError(t, transfer.GetWords(b, 1, words))
	require.Equal(t, []uint32{0x04030201, 0xfffefdfc}, words)
	require.ErrorIs(t, transfer.GetWords(b, 33, words), transfer.ErrRange)
	require.ErrorIs(t, transfer.PutWords(b, 33, words), transfer.ErrRange)
	require.Equal(t, []uint32{0x04030201, 0xfffefdfc}, words, "a failed read touched the words")
	require.NoError(t, transfer.PutWords(b, 37, []byte{7, 8, 9}))
	read := []byte{0, 0, 0, 5}
	require.ErrorIs(t, transfer.GetWords(b, 37, read), transfer.ErrRange)
	require.Equal(t, []byte{0, 0, 0, 5}, read, "a read of more than there is wrote a part")
	require.NoError(t, transfer.GetWords(b, 36, read))
	require.Equal(t, []byte{0, 7, 8, 9}, read)
	require.NoError(t, b.Release())
}

// Calls with zero bytes use no pool and no device: this device panics when it is called.
func TestSeedZeroBytes(t *testing.T) {
	dev := inert{id: 1 << 60}
	s := inertStream{dev: dev}
	p, err := transfer.New(dev, transfer.Config{})
	require.NoError(t, err)
	ctx := t.Context()
	var none memcache.Block
	b, err := p.Get(ctx, 0)
	require.NoError(t, err)
	require.True(t, b.IsZero())
	for name, call := range map[string]func() (*transfer.Copy, error){
		"H2D":        func() (*transfer.Copy, error) { return p.H2D(ctx, s, none, 0, b, 0, 0) },
		"D2H":        func() (*transfer.Copy, error) { return p.D2H(ctx, s, b, 0, none, 0, 0) },
		"D2D":        func() (*transfer.Copy, error) { return p.D2D(ctx, s, none, 0, none, 0, 0) },
		"Fill":       func() (*transfer.Copy, error) { return p.Fill(ctx, s, none, 0, 0, 7) },
		"Upload":     func() (*transfer.Copy, error) { return p.Upload(ctx, s, none, 0, nil) },
		"H2DStrided": func() (*transfer.Copy, error) { return p.H2DStrided(ctx, s, none, 0, b, 0, transfer.Rows{Height: 9}) },
		"D2HStrided": func() (*transfer.Copy, error) {
			return p.D2HStrided(ctx, s, b, 0, none, 0, transfer.Rows{Width: 9, DstPitch: 9, SrcPitch: 9})
		},
		"D2DStrided": func() (*transfer.Copy, error) { return p.D2DStrided(ctx, s, none, 0, none, 0, transfer.Rows{}) },
	} {
		c, err := call()
		require.NoError(t, err, name)
		require.True(t, c.Done(), name)
		require.NoError(t, c.Wait(ctx), name)
		require.NoError(t, c.Err(), name)
		require.Zero(t, c.Bytes(), name)
	}
	require.NoError(t, p.Download(ctx, s, nil, none, 0))
	require.NoError(t, b.Zero(0, 0))
	at, err := b.Range(0, 0)
	require.NoError(t, err)
	require.Zero(t, at)
	reg, err := p.Register(ctx, nil)
	require.NoError(t, err)
	require.NoError(t, reg.Release())

	batch := p.NewBatch()
	require.NoError(t, batch.Upload(ctx, none, 0, nil))
	require.NoError(t, transfer.UploadWords[uint32](ctx, batch, none, 0, nil, 0))
	index, err := batch.Output(ctx, none, 0, 0)
	require.NoError(t, err)
	c, err := batch.Submit(ctx, s)
	require.NoError(t, err)
	require.True(t, c.Done())
	out := []byte{1, 2, 3}
	require.NoError(t, batch.CollectOne(ctx, index, &out))
	require.Empty(t, out)
	require.NoError(t, batch.Close())
	require.Zero(t, p.Stats())
	require.NoError(t, p.Close())
}
