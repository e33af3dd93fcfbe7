package transfer_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// notingStream records the host memory of copies, and makes them one by one.
type notingStream struct {
	device.Stream
	up, down [][]byte
}

func (s *notingStream) CopyH2D(dst device.Ptr, src []byte) error {
	s.up = append(s.up, src)
	return s.Stream.CopyH2D(dst, src)
}

func (s *notingStream) CopyD2H(dst []byte, src device.Ptr) error {
	s.down = append(s.down, dst)
	return s.Stream.CopyD2H(dst, src)
}

// A batch packs its uploads into few buffers, aligned and in order, and its outputs into others.
func TestArenas(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	s := &notingStream{Stream: r.a}
	block := r.alloc(t, 3<<20, s)
	b := r.pool.NewBatch()
	requested := func() int64 { return r.pool.Stats().RequestedBytes.Current }
	upload := func(n int) { require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, n))) }
	upload(100)
	upload(1)
	_, err := b.Output(t.Context(), block, 0, 10)
	require.NoError(t, err)
	require.EqualValues(t, 2*64<<10, requested())
	upload(64<<10 - 192)
	require.EqualValues(t, 2*64<<10, requested(), "there was just room")
	upload(1)
	require.EqualValues(t, (64+64+128)<<10, requested())
	upload(128 << 10) // the next is twice as large
	require.EqualValues(t, (64+64+128+256)<<10, requested())
	_, err = b.Submit(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, addressOf(s.up[0])+128, addressOf(s.up[1]))
	require.Equal(t, addressOf(s.up[0])+192, addressOf(s.up[2]))
	require.Len(t, s.down, 1)
	require.NoError(t, b.Close())
	require.EqualValues(t, 4, r.pool.Stats().Pending, "each is in use")

	b = r.pool.NewBatch()
	for _, want := range []int64{1, 3, 3, 7, 7, 7, 7, 11, 11, 11, 11, 15} { // no more than 4 MiB at a time
		upload(1 << 20)
		require.EqualValues(t, want<<20, requested())
	}
	upload(3 << 20)
	require.EqualValues(t, 15<<20, requested())
	_, err = b.Output(t.Context(), block, 0, 1)
	require.NoError(t, err)
	require.EqualValues(t, 15<<20+64<<10, requested(), "uploads say nothing about outputs")
	require.NoError(t, b.Close())
	b = r.pool.NewBatch()
	upload(3 << 20)
	upload(2 << 20)
	require.EqualValues(t, 7<<20, requested())
	upload(3 << 20)
	require.EqualValues(t, 11<<20, requested())
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
}

// Consecutive copies in one direction are one operation, even if their ranges are adjacent.
func TestBatchCopiesOfOneKindAreOneOperation(t *testing.T) {
	dev := newSim()
	r := rigOn(t, dev, transfer.Config{})
	s := dev.stream(true)
	block := r.alloc(t, 512, s)
	b := r.pool.NewBatch()
	for i := range int64(8) {
		require.NoError(t, b.Upload(t.Context(), block, 64*i, fill(make([]byte, 64), byte(i))))
	}
	for i := range int64(8) {
		_, err := b.Output(t.Context(), block, 64*i, 64)
		require.NoError(t, err)
	}
	_, err := b.Submit(t.Context(), s)
	require.NoError(t, err)
	require.Equal(t, 3, len(raw(s).queue), "two copies and an event")
	var got [][]byte
	require.NoError(t, b.Collect(t.Context(), &got))
	for i := range got {
		require.Equal(t, fill(make([]byte, 64), byte(i)), got[i])
	}
	require.NoError(t, errors.Join(b.Close(), block.Free(), s.Close()))
}

// All blocks of a batch may be freed after Submit, even those that kernels use.
func TestBatchRecordsItsBlocks(t *testing.T) {
	r := rigOn(t, newSim(), transfer.Config{})
	var blocks []memcache.Block
	for range 5 {
		blocks = append(blocks, r.alloc(t, 64, r.a))
	}
	b := r.pool.NewBatch()
	for _, block := range blocks[:2] {
		require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 64)))
	}
	require.NoError(t, b.Launch(r.addTo(t, blocks[2], 0, 64, 1), blocks[2]))
	for _, block := range blocks[3:] {
		_, err := b.Output(t.Context(), block, 0, 64)
		require.NoError(t, err)
	}
	_, err := b.Submit(t.Context(), r.b)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	for _, freed := range blocks {
		require.NoError(t, freed.Free())
		next := r.alloc(t, 64, r.a)
		for _, busy := range blocks {
			require.NotEqual(t, busy.Ptr(), next.Ptr(), "handed out under the batch")
		}
		defer next.Free()
	}
}

// A batch of kernels alone runs, and its Copy ends.
func TestBatchOfKernels(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, 64, 1)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	b := r.pool.NewBatch()
	require.NoError(t, b.Launch(r.addTo(t, block, 0, 64, 5), block))
	c, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	require.False(t, c.Done())
	open()
	require.NoError(t, c.Wait(t.Context()))
	require.EqualValues(t, 6, r.read(t, r.a, block)[0])
	require.NoError(t, errors.Join(b.Close(), block.Free()))
}

// Large outputs are collected by several goroutines, completely.
func TestCollectOnManyGoroutines(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(4))
	r := newRig(t, transfer.Config{})
	var sizes []int64
	for i := range int64(41) {
		sizes = append(sizes, 60_000+i)
	}
	for range 3 {
		b, want := r.outputs(t, sizes...)
		var all [][]byte
		require.NoError(t, b.Collect(t.Context(), &all))
		require.Equal(t, want, all)
		into := make([][]byte, len(want))
		require.NoError(t, b.CollectInto(t.Context(), into))
		require.Equal(t, want, into)
		require.NoError(t, b.Close())
	}
}

func TestCollectIntoWantsOneForEachSlot(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b, _ := r.outputs(t, 10, 20)
	dst := [][]byte{{1}, {2}, {3}}
	for _, n := range []int{1, 3} {
		require.ErrorIs(t, b.CollectInto(t.Context(), dst[:n]), transfer.ErrRange)
	}
	require.Equal(t, [][]byte{{1}, {2}, {3}}, dst)
	require.NoError(t, b.Close())
}

// After the pool's Close outputs can't be collected, whether they had arrived or not.
func TestCollectOfAClosedPool(t *testing.T) {
	r := newRig(t, transfer.Config{})
	p, err := transfer.New(poisoning{r.dev}, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 64, r.a)
	b := p.NewBatch()
	_, err = b.Output(t.Context(), block, 0, 64)
	require.NoError(t, err)
	c, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	require.NoError(t, c.Wait(t.Context()))
	require.Error(t, p.Close())
	got := []byte{1, 2, 3}
	require.ErrorIs(t, b.CollectOne(t.Context(), 0, &got), transfer.ErrClosed)
	require.Equal(t, []byte{1, 2, 3}, got)
	require.ErrorIs(t, b.Close(), transfer.ErrClosed)
	require.NoError(t, block.Free())
}

// A Collect that waits while the batch is closed fails, and blocks no other call.
func TestCollectOfABatchThatIsClosedMeanwhile(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64, r.a)
	open := cisterntest.Hold(t, r.a)
	b := r.pool.NewBatch()
	_, err := b.Output(t.Context(), block, 0, 64)
	require.NoError(t, err)
	_, err = b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	ctx, awaited := cisterntest.Awaited(t.Context())
	collected := make(chan error)
	got := [][]byte{{1}}
	go func() { collected <- b.Collect(ctx, &got) }()
	<-awaited
	time.Sleep(time.Millisecond)
	require.NoError(t, b.Close())
	open()
	require.ErrorIs(t, <-collected, transfer.ErrClosed)
	require.Equal(t, [][]byte{{1}}, got)
	require.Zero(t, b.Outputs())
	require.NoError(t, block.Free())
}
