package transfer_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Padding is zero although the pinned memory was used before, words are little-endian, and bytes
// around a range are unchanged.
func TestSeedBatchOperations(t *testing.T) {
	r := newRig(t, transfer.Config{})
	dirty := r.get(t, 64<<10)
	fill(dirty.Bytes(), 0xee)
	require.NoError(t, dirty.Release())
	block := r.alloc(t, 1024, r.a)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, block.Size(), 0xaa)
	require.NoError(t, err)
	want := bytes.Repeat([]byte{0xaa}, int(block.Size()))

	b := r.pool.NewBatch()
	data := fill(make([]byte, 100), 3)
	require.NoError(t, b.Upload(t.Context(), block, 7, data))
	copy(want[7:], data)
	require.NoError(t, b.UploadPadded(t.Context(), block, 200, data, 161))
	copy(want[200:], data)
	clear(want[300:361])
	require.NoError(t, b.UploadPadded(t.Context(), block, 400, nil, 9))
	clear(want[400:409])
	require.NoError(t, transfer.UploadWords(t.Context(), b, block, 501, []uint16{0x0201}, 0))
	require.NoError(t, transfer.UploadWords(t.Context(), b, block, 503, []uint32{0x04030201}, 6))
	require.NoError(t, transfer.UploadWords(t.Context(), b, block, 509, []uint64{0x0807060504030201, 0xfe}, 0))
	copy(want[501:], []byte{1, 2, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0xfe, 0, 0, 0, 0, 0, 0, 0})
	clear(data) // it is the caller's again
	whole, err := b.Output(t.Context(), block, 0, block.Size())
	require.NoError(t, err)
	padded, err := b.OutputPadded(t.Context(), block, 200, 110, 256)
	require.NoError(t, err)
	empty, err := b.OutputPadded(t.Context(), block, 0, 0, 256)
	require.NoError(t, err)
	require.Equal(t, [4]int{0, 1, 2, 3}, [4]int{whole, padded, empty, b.Outputs()})
	c, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	up, down := int64(100+161+9+2+6+16), block.Size()+256+256
	require.Equal(t, up+down, c.Bytes())

	var got [][]byte
	require.NoError(t, b.Collect(t.Context(), &got))
	require.Equal(t, [][]byte{want, want[200:310]}, got[:2])
	require.Len(t, got, 3)
	require.Empty(t, got[2])
	st := r.pool.Stats()
	require.Equal(t, [4]int64{6, up, 3, down}, [4]int64{st.H2DCopies, st.H2DBytes, st.D2HCopies, st.D2HBytes})
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
	idle(t, r.pool)
}

// The caller's slices keep their memory if it is large enough.
func TestSeedCollectKeepsCapacity(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, want := r.outputs(t, 100, 0, 300)
	same := func(a, b []byte) { t.Helper(); require.Same(t, &a[:1][0], &b[:1][0]) }

	all := [][]byte{make([]byte, 1, 100), nil, make([]byte, 299), {9}}
	before := append([][]byte(nil), all...)
	require.NoError(t, b.Collect(t.Context(), &all))
	require.Equal(t, [][]byte{want[0], nil, want[2]}, all)
	same(before[0], all[0])
	require.NotSame(t, &before[2][0], &all[2][0])
	hidden := fill(make([]byte, 300), 9)
	grown := append(before[:2], hidden)[:2] // the third slice is after the length and not to be used
	require.NoError(t, b.Collect(t.Context(), &grown))
	require.Equal(t, want[2], grown[2])
	require.Equal(t, fill(make([]byte, 300), 9), hidden)

	mine := [][]byte{make([]byte, 500), nil, make([]byte, 500)}
	before = append([][]byte(nil), mine...)
	require.NoError(t, b.CollectInto(t.Context(), mine))
	require.Equal(t, [][]byte{want[0], nil, want[2]}, mine)
	same(before[0], mine[0])
	same(before[2], mine[2])

	one := make([]byte, 400)
	first := one
	require.NoError(t, b.CollectOne(t.Context(), 2, &one))
	require.Equal(t, want[2], one)
	same(first, one)
	require.NoError(t, b.CollectRange(t.Context(), 2, 17, 40, &one))
	require.Equal(t, want[2][17:57], one)
	same(first, one)
	require.NoError(t, b.CollectRange(t.Context(), 2, 300, 0, &one))
	require.Empty(t, one)
	require.NoError(t, b.Close())
}

// CollectInto writes no other slice of dst, and nothing after the capacity of dst[i].
func TestCollectIntoKeepsToItsLengths(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for _, sizes := range [][2]int64{{8, 4}, {4, 8}, {4, 4}, {3, 9}, {0, 5}, {5, 0}} {
		b, want := r.outputs(t, sizes[0], sizes[1])
		whole := fill(make([]byte, 16), 99)
		dst := [][]byte{whole[:4], whole[4:8:8]} // the first one's capacity contains the second one
		require.NoError(t, b.CollectInto(t.Context(), dst))
		for i := range want {
			require.True(t, bytes.Equal(want[i], dst[i]), "%v: output %d is %v", sizes, i, dst[i])
			if len(want[i]) > 0 {
				require.Equal(t, len(want[i]) <= 4, &dst[i][0] == &whole[4*i], "%v: output %d", sizes, i)
			}
		}
		require.Equal(t, fill(make([]byte, 16), 99)[8:], whole[8:], "%v", sizes)
		require.ErrorIs(t, b.CollectInto(t.Context(), append(dst, nil)), transfer.ErrRange, "a slice without an output")
		require.NoError(t, b.Close())
	}
}

// After a shorter output, and after an error, the capacity of the caller's slices is unchanged.
func TestCollectKeepsTheCapacity(t *testing.T) {
	r := newRig(t, transfer.Config{})
	into := [][]byte{make([]byte, 32), make([]byte, 5, 40)}
	memory := [][]byte{into[0][:32], into[1][:40]}
	one := make([]byte, 32)
	first := one
	for _, sizes := range [][2]int64{{4, 40}, {4, 0}, {0, 7}, {32, 40}, {31, 1}, {32, 40}} {
		b, want := r.outputs(t, sizes[0], sizes[1])
		for name, collect := range map[string]func() error{
			"Collect":     func() error { return b.Collect(t.Context(), &into) },
			"CollectInto": func() error { return b.CollectInto(t.Context(), into) },
		} {
			into[0], into[1] = into[0][:min(3, len(into[0]))], into[1][:0] // both grow
			require.NoError(t, collect())
			for i := range into {
				require.True(t, bytes.Equal(want[i], into[i]), "%s %v: output %d is %v", name, sizes, i, into[i])
				require.Equal(t, cap(memory[i]), cap(into[i]), "%s %v: output %d", name, sizes, i)
				require.Same(t, &memory[i][0], &into[i][:1][0], "%s %v: output %d", name, sizes, i)
			}
		}
		require.NoError(t, b.CollectOne(t.Context(), 0, &one))
		require.NoError(t, b.CollectRange(t.Context(), 0, 0, min(2, sizes[0]), &one))
		require.Equal(t, 32, cap(one))
		require.Same(t, &first[0], &one[:1][0])
		require.NoError(t, b.Close())
		before := fmt.Sprint(into)
		require.ErrorIs(t, b.CollectInto(t.Context(), into), transfer.ErrClosed)
		require.Equal(t, before, fmt.Sprint(into))
		require.Equal(t, [2]int{32, 40}, [2]int{cap(into[0]), cap(into[1])})
	}
}

// A slice never grows into another slice's memory, in any order of their addresses.
func TestCollectSeparatesSlots(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		whole := make([]byte, 64)
		var dst [][]byte
		var sizes []int64
		for at := 0; at < 48; {
			n := rng.IntN(6)
			dst = append(dst, whole[at:at+n])
			sizes = append(sizes, int64(rng.IntN(20)))
			at += max(n, 1) + rng.IntN(8)
		}
		rng.Shuffle(len(dst), func(i, j int) { dst[i], dst[j] = dst[j], dst[i] })
		b, want := r.outputs(t, sizes...)
		require.NoError(t, b.CollectInto(t.Context(), dst))
		for i := range want {
			require.True(t, bytes.Equal(want[i], dst[i]), "seed %d: output %d of %v is %v", seed, i, sizes, dst[i])
		}
		require.NoError(t, b.Close())
	}
}

// outputs returns a submitted batch with outputs of the given sizes, and their contents.
func (r *rig) outputs(t *testing.T, sizes ...int64) (*transfer.Batch, [][]byte) {
	t.Helper()
	b := r.pool.NewBatch()
	var want [][]byte
	for i, n := range sizes {
		block := r.alloc(t, n+1, r.a)
		data := fill(make([]byte, n), byte(7*i))
		_, err := r.pool.Upload(t.Context(), r.a, block, 0, data)
		require.NoError(t, err)
		_, err = b.Output(t.Context(), block, 0, n)
		require.NoError(t, err)
		want = append(want, data)
		t.Cleanup(func() { block.Free() })
	}
	_, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	return b, want
}

// On every error the caller's last good output is unchanged, and the error names valid arguments.
func TestSeedCollectErrors(t *testing.T) {
	r := newRig(t, transfer.Config{})
	ready, _ := r.outputs(t, 100, 50)
	closed, _ := r.outputs(t, 100, 50)
	require.NoError(t, closed.Close())
	building := r.pool.NewBatch()
	refused := r.pool.NewBatch()
	_, err := refused.Submit(cancelled(), r.a)
	require.ErrorIs(t, err, cancelled().Err())
	open := cisterntest.Hold(t, r.a)
	late, _ := r.outputs(t, 100, 50)

	good := [][]byte{fill(make([]byte, 100), 1), fill(make([]byte, 80), 2)}
	one := fill(make([]byte, 60, 90), 3)
	type call = func(b *transfer.Batch) error
	calls := map[string]call{
		"Collect":      func(b *transfer.Batch) error { return b.Collect(t.Context(), &good) },
		"CollectInto":  func(b *transfer.Batch) error { return b.CollectInto(t.Context(), good) },
		"CollectOne":   func(b *transfer.Batch) error { return b.CollectOne(t.Context(), 1, &one) },
		"CollectRange": func(b *transfer.Batch) error { return b.CollectRange(t.Context(), 1, 0, 9, &one) },
	}
	failed := func(name string, err, class error, text string) {
		t.Helper()
		require.ErrorIs(t, err, class, name)
		require.ErrorContains(t, err, text, name)
		require.Equal(t, [][]byte{fill(make([]byte, 100), 1), fill(make([]byte, 80), 2)}, good, name)
		require.Equal(t, fill(make([]byte, 60), 3), one, name)
	}
	for name, f := range calls {
		failed(name, f(closed), transfer.ErrClosed, name+": the batch is closed")
		failed(name, f(building), transfer.ErrInvalid, name+": invalid argument: Submit the batch first")
		failed(name, f(refused), cancelled().Err(), name+": the batch failed")
	}
	for name, err := range map[string]error{
		"Collect": late.Collect(cancelled(), &good), "CollectInto": late.CollectInto(cancelled(), good),
		"CollectOne": late.CollectOne(cancelled(), 0, &one), "CollectRange": late.CollectRange(cancelled(), 0, 0, 9, &one),
	} {
		failed(name, err, cancelled().Err(), name)
	}
	open()
	for _, c := range []struct {
		err  error
		text string
	}{
		{ready.CollectInto(t.Context(), good[:1]), "CollectInto 1 slices: out of range: the batch has 2 outputs"},
		{ready.CollectInto(t.Context(), nil), "CollectInto 0 slices"},
		{ready.CollectOne(t.Context(), 2, &one), "output 2: out of range: the batch has 2 outputs"},
		{ready.CollectOne(t.Context(), -1, &one), "output -1"},
		{ready.CollectRange(t.Context(), 1, 40, 11, &one), "11 bytes at offset 40 of an output of 50 bytes: out of range: it has 50 bytes"},
		{ready.CollectRange(t.Context(), 1, 1<<62, 1<<62, &one), "it has 50 bytes"},
		{ready.CollectRange(t.Context(), 1, -1, 2, &one), "offset -1"},
		{ready.CollectRange(t.Context(), 1, 0, -1, &one), "-1 bytes: out of range: want 0 or more"},
	} {
		failed(c.text, c.err, transfer.ErrRange, c.text)
	}
	require.NoError(t, late.Collect(t.Context(), &good))
	for _, b := range []*transfer.Batch{ready, building, refused, late} {
		require.NoError(t, b.Close())
	}
	idle(t, r.pool)
}

// tour returns a batch with every kind of step, and its expected outputs.
func (r *rig) tour(t *testing.T, p *transfer.Pool, dst *[][]byte) error {
	ctx := t.Context()
	b := p.NewBatch()
	defer func() { require.NoError(t, b.Close()) }()
	blocks := [2]memcache.Block{}
	for i := range blocks {
		var err error
		if blocks[i], err = r.cache.Alloc(ctx, 200_000, r.a); err != nil {
			return err
		}
		defer blocks[i].Free()
	}
	for i, block := range blocks {
		if err := b.UploadPadded(ctx, block, 0, fill(make([]byte, 150_000), byte(i)), 200_000); err != nil {
			return err
		}
		if err := transfer.UploadWords(ctx, b, block, 199_992, []uint64{1 << 40}, 0); err != nil {
			return err
		}
		if err := b.Launch(r.addTo(t, block, 0, 200_000, 5), block); err != nil {
			return err
		}
		if _, err := b.Output(ctx, block, 100_000, 100_000); err != nil {
			return err
		}
	}
	if _, err := b.Submit(ctx, r.a); err != nil {
		return err
	}
	return b.Collect(ctx, dst)
}

func tourWant() (want [][]byte) {
	for i := range 2 {
		data := fill(make([]byte, 150_000), byte(i))
		data = append(data, make([]byte, 50_000)...)
		data[199_997] = 1
		for k := range data {
			data[k] += 5
		}
		want = append(want, data[100_000:])
	}
	return want
}

// A failure at any point leaves the last good outputs unchanged and no buffer out of the pool.
func TestSeedFaults(t *testing.T) {
	check := func(t *testing.T, r *rig, p *transfer.Pool, class error) (ok bool) {
		t.Helper()
		dst := [][]byte{fill(make([]byte, 120_000), 1)}
		err := r.tour(t, p, &dst)
		if err == nil {
			require.Equal(t, tourWant(), dst)
		} else {
			require.ErrorIs(t, err, class)
			require.Equal(t, [][]byte{fill(make([]byte, 120_000), 1)}, dst)
		}
		idle(t, p)
		return err == nil
	}
	t.Run("driver has no more", func(t *testing.T) {
		r := newRig(t, transfer.Config{})
		dev := &failing{Device: r.dev}
		for n, ok := int64(0), false; !ok; n++ {
			dev.left.Store(n)
			p, err := transfer.New(dev, transfer.Config{})
			require.NoError(t, err)
			ok = check(t, r, p, device.ErrOutOfMemory)
			require.Equal(t, n >= 4, ok, "four arenas")
			require.NoError(t, p.Close())
		}
	})
	for f, class := range map[host.Fault]error{
		host.FaultPinned: device.ErrOutOfMemory, host.FaultCopy: device.ErrSticky, host.FaultLaunch: device.ErrSticky,
	} {
		t.Run(fmt.Sprint("fault ", f), func(t *testing.T) {
			for n := 1; n <= 8; n++ {
				r := newRig(t, transfer.Config{})
				r.Faulted = true
				r.host(t).Fail(f, n)
				ok := check(t, r, r.pool, class)
				faults := map[host.Fault]int{host.FaultCopy: 6, host.FaultLaunch: 2}[f] // pinned: the pool tries again
				require.Equal(t, n > faults, ok, "n = %d", n)
			}
		})
	}
}
