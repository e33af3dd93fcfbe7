package transfer_test

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// A stale handle only compares its serial number: the state of the slab's current owner does not
// matter.
func TestWaitBesideRelease(t *testing.T) {
	r := newRig(t, transfer.Config{})
	for range 200 {
		b := r.get(t, 64)
		var wg sync.WaitGroup
		wg.Go(func() {
			for range 3 {
				if err := b.Wait(t.Context()); err != nil && !errors.Is(err, transfer.ErrReleased) {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			if err := b.Release(); err != nil {
				t.Error(err)
			}
		})
		wg.Wait()
	}
}

// After the pool's Close the batch's memory is freed.
func TestBatchOfAClosedPoolIsNotWritten(t *testing.T) {
	r := newRig(t, transfer.Config{})
	pool, err := transfer.New(r.dev, transfer.Config{})
	require.NoError(t, err)
	block := r.alloc(t, 512, r.a)
	b := pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 8)))
	require.ErrorContains(t, pool.Close(), "1 buffers")
	require.ErrorIs(t, b.Upload(t.Context(), block, 0, make([]byte, 8)), transfer.ErrClosed)
	_, err = b.Output(t.Context(), block, 0, 8)
	require.ErrorIs(t, err, transfer.ErrClosed)
	require.ErrorIs(t, b.Close(), transfer.ErrClosed)
	require.NoError(t, block.Free())
}

// anyOrder is a stream whose batches copy the last range first, which [device.BatchCopier] allows.
type anyOrder struct{ device.Stream }

func (s anyOrder) CopyH2DBatch(dst []device.Ptr, src [][]byte) error {
	for i := len(dst) - 1; i >= 0; i-- {
		if err := s.CopyH2D(dst[i], src[i]); err != nil {
			return err
		}
	}
	return nil
}

func (s anyOrder) CopyD2HBatch(dst [][]byte, src []device.Ptr) error {
	return s.Stream.(device.BatchCopier).CopyD2HBatch(dst, src)
}

// Uploads run in the order in which they were added, even to the same bytes.
func TestBatchKeepsTheOrderOfUploadsThatOverlap(t *testing.T) {
	r := newRig(t, transfer.Config{})
	s := anyOrder{r.a}
	block, other := r.alloc(t, 512, s), r.alloc(t, 512, s)
	b := r.pool.NewBatch()
	for _, u := range []struct {
		offset int64
		src    string
	}{{0, "........"}, {8, "XY"}, {2, "abc"}, {4, "de"}, {6, "f"}, {9, "Z"}} {
		require.NoError(t, b.Upload(t.Context(), block, u.offset, []byte(u.src)))
		require.NoError(t, b.Upload(t.Context(), other, u.offset, []byte(u.src)))
	}
	for _, from := range []int64{0, 0} {
		_, err := b.Output(t.Context(), block, from, 10)
		require.NoError(t, err)
	}
	_, err := b.Output(t.Context(), other, 0, 10)
	require.NoError(t, err)
	_, err = b.Submit(t.Context(), s)
	require.NoError(t, err)
	var got [][]byte
	require.NoError(t, b.Collect(t.Context(), &got))
	for _, g := range got {
		require.Equal(t, "..abdef.XZ", string(g))
	}
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
	require.NoError(t, other.Free())
}

// A large copy is staged with the available pinned memory, on any number of processors.
func TestStagingFitsMaxBytes(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	r := newRig(t, transfer.Config{MaxBytes: 5 << 20})
	const size = 40 << 20
	block := r.alloc(t, size, r.a)
	src, dst := fill(make([]byte, size), 3), make([]byte, size)
	_, err := r.pool.Upload(t.Context(), r.a, block, 0, src)
	require.NoError(t, err)
	require.NoError(t, r.pool.Download(t.Context(), r.a, dst, block, 0))
	require.True(t, slices.Equal(src, dst))
	require.NoError(t, block.Free())
}

func TestCollectWithoutADestination(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 512, r.a)
	b := r.pool.NewBatch()
	_, err := b.Output(t.Context(), block, 0, 8)
	require.NoError(t, err)
	_, err = b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	require.ErrorIs(t, b.Collect(t.Context(), nil), transfer.ErrInvalid)
	require.ErrorIs(t, b.CollectOne(t.Context(), 0, nil), transfer.ErrInvalid)
	require.ErrorIs(t, b.CollectRange(t.Context(), 0, 0, 1, nil), transfer.ErrInvalid)
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
}

// Memory over the budget whose copies Stats found done is freed by the next Release, even by one
// whose own copies are pending.
func TestReleaseInFlightGivesBackWhatIsOverTheBudget(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1)) // one shard
	r := newRig(t, transfer.Config{MaxCachedBytes: 1 << 20})
	r.host(t) // CUDA's free may wait for all work, even held work
	small, big := [2]transfer.Buffer{r.get(t, 64), r.get(t, 64)}, r.get(t, 2<<20)
	for _, b := range small {
		require.NoError(t, b.Release())
	}
	block := r.alloc(t, 2<<20, r.a)
	c, err := r.pool.H2D(t.Context(), r.a, block, 0, big, 0, 2<<20)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	again := r.get(t, 64)
	_, err = r.pool.H2D(t.Context(), r.a, block, 0, again, 0, 64)
	require.NoError(t, err)
	require.NoError(t, big.Release())
	require.NoError(t, c.Wait(t.Context()))
	require.Zero(t, r.pool.Stats().Pending)
	require.Greater(t, r.pool.Stats().HeldBytes.Current, int64(2<<20))
	require.NoError(t, again.Release())
	require.Less(t, r.pool.Stats().HeldBytes.Current, int64(1<<20))
	open()
	require.NoError(t, block.Free())
}

// eventList is an observer that records operations.
type eventList struct {
	mu     sync.Mutex
	events []transfer.OpInfo
}

func (l *eventList) Start(ctx context.Context, _ transfer.Op) (context.Context, transfer.Operation) {
	return ctx, l
}

func (l *eventList) End(e transfer.OpInfo) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.events = append(l.events, e)
}

// A batch has many blocks, so its operation has no serial.
func TestEventOfABatchHasNoSerial(t *testing.T) {
	list := new(eventList)
	r := newRig(t, transfer.Config{Observer: list})
	block := r.alloc(t, 512, r.a)
	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 8)))
	_, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
	require.NoError(t, r.pool.Close())
	list.mu.Lock()
	defer list.mu.Unlock()
	i := slices.IndexFunc(list.events, func(e transfer.OpInfo) bool { return e.Op == transfer.OpBatch })
	require.Zero(t, list.events[i].Serial)
}
