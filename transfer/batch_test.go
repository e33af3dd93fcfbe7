package transfer_test

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// Steps run in the order in which they were added, and nothing runs before Submit.
func TestBatchOrder(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 512, r.a)
	data := fill(make([]byte, 512), 40)
	_, err := r.pool.Upload(t.Context(), r.a, block, 0, data)
	require.NoError(t, err)
	b := r.pool.NewBatch()
	want := [][]byte{}
	output := func() {
		index, err := b.Output(t.Context(), block, 0, 512)
		require.NoError(t, err)
		require.Equal(t, len(want), index)
		want = append(want, append([]byte(nil), data...))
	}
	output()
	for i := range 5 {
		part := fill(make([]byte, 100), byte(i))
		require.NoError(t, b.Upload(t.Context(), block, int64(i*50), part))
		require.NoError(t, b.Launch(r.addTo(t, block, 0, 300, 3), block))
		copy(data[i*50:], part)
		for k := range 300 {
			data[k] += 3
		}
		output()
		require.NoError(t, b.Upload(t.Context(), block, 400, part))
		copy(data[400:], part)
		output()
	}
	require.Equal(t, want[0], r.read(t, r.a, block), "something ran before Submit")
	c, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	var got [][]byte
	require.NoError(t, b.Collect(t.Context(), &got))
	require.True(t, c.Done())
	require.Equal(t, want, got)
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
	idle(t, r.pool)
}

// Many entries, and entries larger than any arena, take only a few pinned buffers.
func TestBatchLarge(t *testing.T) {
	r := newRig(t, transfer.Config{})
	rng := rand.New(rand.NewPCG(1, 2))
	b := r.pool.NewBatch()
	var want [][]byte
	for i := range 1500 {
		n := rng.IntN(3000)
		if i%700 == 5 {
			n = 5<<20 + 77
		}
		block := r.alloc(t, int64(n)+1, r.a)
		data := fill(make([]byte, n), byte(i))
		require.NoError(t, b.Upload(t.Context(), block, 1, data))
		_, err := b.Output(t.Context(), block, 1, int64(n))
		require.NoError(t, err)
		want = append(want, data)
		defer block.Free()
	}
	require.Less(t, r.pool.Stats().ActiveRequests.Current, int64(24), "arenas")
	_, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	got := make([][]byte, b.Outputs())
	require.NoError(t, b.CollectInto(t.Context(), got))
	for i := range want {
		if len(want[i]) > 0 {
			require.Equal(t, want[i], got[i], i)
		}
	}
	require.NoError(t, b.Close())
	idle(t, r.pool)
}

// Blocks may be freed, and the batch closed, before its stream has begun: neither their memory nor
// the pinned memory is reused before the copies are done.
func TestBatchKeepsItsMemory(t *testing.T) {
	r := newRig(t, transfer.Config{})
	from, to, kept := r.alloc(t, 4096, r.a), r.alloc(t, 4096, r.a), r.alloc(t, 4096, r.a)
	data := fill(make([]byte, 4096), 9)
	_, err := r.pool.Upload(t.Context(), r.a, from, 0, data)
	require.NoError(t, err)
	require.NoError(t, r.a.Synchronize(t.Context()))
	require.NoError(t, r.pool.EmptyCache(t.Context()))
	open := cisterntest.Hold(t, r.b)
	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), to, 0, data))
	require.NoError(t, b.Upload(t.Context(), kept, 0, data))
	require.NoError(t, b.Launch(r.addTo(t, to, 0, 4096, 1), to))
	_, err = b.Output(t.Context(), from, 0, 4096)
	require.NoError(t, err)
	c, err := b.Submit(t.Context(), r.b)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.EqualValues(t, 2, r.pool.Stats().Pending)
	for _, block := range []memcache.Block{from, to} {
		require.NoError(t, block.Free())
		next := r.alloc(t, 4096, r.a)
		require.NotEqual(t, from.Ptr(), next.Ptr(), "handed out under a copy")
		require.NotEqual(t, to.Ptr(), next.Ptr(), "handed out under a copy")
		require.NoError(t, r.a.Memset(next.Ptr(), 0xee, 4096))
		defer next.Free()
	}
	misses := r.pool.Stats().Misses
	for range 2 {
		next := r.get(t, 64<<10)
		fill(next.Bytes(), 0xdd)
		defer next.Release()
	}
	require.Equal(t, misses+2, r.pool.Stats().Misses, "an arena was handed out under its copies")
	require.False(t, c.Done())
	open()
	require.NoError(t, c.Wait(t.Context()))
	require.Equal(t, data, r.read(t, r.b, kept))
	require.NoError(t, kept.Free())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
}

// A batch in the wrong state, and wrong arguments, are errors that change nothing.
func TestBatchMistakes(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 512, r.a)
	data := fill(make([]byte, 512), 1)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, 512, 7)
	require.NoError(t, err)
	b := r.pool.NewBatch()
	l := r.addTo(t, block, 0, 512, 1)
	add := func() []error {
		_, outputErr := b.Output(t.Context(), block, 0, 1)
		return []error{outputErr, b.Upload(t.Context(), block, 0, data), b.Launch(l, block),
			transfer.UploadWords(t.Context(), b, block, 0, []uint16{1}, 0)}
	}
	for _, err := range []error{
		b.Upload(t.Context(), block, 1, data), b.Upload(t.Context(), block, -1, data[:1]),
		b.UploadPadded(t.Context(), block, 0, data, 511), b.UploadPadded(t.Context(), block, 1, nil, 512),
		b.UploadPadded(t.Context(), block, 1, nil, 1<<63-1), b.UploadPadded(t.Context(), block, 0, nil, -1),
		transfer.UploadWords(t.Context(), b, block, 510, []uint32{1}, 0), transfer.UploadWords(t.Context(), b, block, 0, []uint32{1}, 3),
		b.Upload(t.Context(), memcache.Block{}, 0, data),
	} {
		require.ErrorIs(t, err, transfer.ErrRange)
	}
	for _, c := range [][3]int64{{0, 513, 513}, {0, -1, 5}, {0, 6, 5}, {1, 5, 512}, {-1, 1, 1}, {1 << 62, 1, 1 << 62}} {
		_, err := b.OutputPadded(t.Context(), block, c[0], c[1], c[2])
		require.ErrorIs(t, err, transfer.ErrRange, c)
	}
	require.ErrorIs(t, b.Launch(nil), transfer.ErrInvalid)
	_, err = b.Submit(t.Context(), inertStream{dev: inert{id: 1 << 60}})
	require.ErrorIs(t, err, transfer.ErrInvalid)
	_, err = b.Submit(t.Context(), nil)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	require.Zero(t, b.Outputs())
	require.Zero(t, r.pool.Stats().ActiveRequests.Current, "a refused entry took memory")

	_, err = b.Submit(t.Context(), r.a) // it is still empty
	require.NoError(t, err)
	roomy := r.pool.NewBatch() // its arena is not full
	_, err = roomy.Output(t.Context(), block, 0, 1)
	require.NoError(t, errors.Join(err, roomy.Upload(t.Context(), block, 0, []byte{7})))
	_, err = roomy.Submit(t.Context(), r.a)
	require.NoError(t, err)
	_, err = roomy.Output(t.Context(), block, 0, 1)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	require.ErrorIs(t, roomy.Upload(t.Context(), block, 0, []byte{8}), transfer.ErrInvalid)
	require.Equal(t, 1, roomy.Outputs())
	require.NoError(t, roomy.Close())
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	for _, err := range add() {
		require.ErrorIs(t, err, transfer.ErrInvalid)
		require.ErrorContains(t, err, "submitted")
	}
	require.NoError(t, b.Close())
	for _, err := range add() {
		require.ErrorIs(t, err, transfer.ErrClosed)
	}
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, transfer.ErrClosed)

	// The block was freed before Submit.
	freed := r.alloc(t, 512, r.a)
	b = r.pool.NewBatch()
	require.NoError(t, errors.Join(b.Upload(t.Context(), block, 0, data), b.Upload(t.Context(), freed, 0, data)))
	require.NoError(t, freed.Free())
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, memcache.ErrFreed)
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, transfer.ErrInvalid)
	require.NoError(t, b.Close())
	got := r.read(t, r.a, block)
	for _, v := range got {
		require.EqualValues(t, 7, v, "a part of a failed batch ran")
	}
	require.NoError(t, block.Free())
	idle(t, r.pool)
}

// Collect and Close of one batch from many goroutines: either right contents or an error.
func TestBatchCollectUnderClose(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for range 20 {
		b, want := r.outputs(t, 3000, 70_000)
		var wg sync.WaitGroup
		for g := range 4 {
			wg.Go(func() {
				for range 4 {
					got := [][]byte{{1}, {2}}
					err := b.Collect(t.Context(), &got)
					switch {
					case err == nil && string(got[1]) != string(want[1]), err != nil && !errors.Is(err, transfer.ErrClosed),
						err != nil && string(got[0]) != "\x01":
						t.Error("wrong contents", err)
					}
				}
				if g == 0 {
					if err := b.Close(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
	}
	idle(t, r.pool)
}

// A Collect keeps the memory until it has copied it: a concurrent Close waits, and so the memory
// has no new owner.
func TestCollectKeepsItsMemory(t *testing.T) {
	const n = 8 << 20
	r := newRig(t, transfer.Config{})
	for i := range 6 {
		b, want := r.outputs(t, n)
		require.NoError(t, r.a.Synchronize(t.Context()))
		got := [][]byte{make([]byte, n)}
		collected := make(chan error, 1)
		go func() { collected <- b.Collect(t.Context(), &got) }()
		time.Sleep(time.Duration(i) * 200 * time.Microsecond)
		require.NoError(t, b.Close())
		next := r.get(t, n)
		clear(next.Bytes())
		if err := <-collected; err != nil {
			require.ErrorIs(t, err, transfer.ErrClosed)
		} else {
			require.True(t, bytes.Equal(want[0], got[0]))
		}
		require.NoError(t, next.Release())
	}
}
