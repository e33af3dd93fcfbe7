package transfer_test

import (
	"bytes"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/transfer"
)

// collectDropped runs the garbage collector until it has found n batches.
func (r *rig) collectDropped(t *testing.T, want int64) {
	t.Helper()
	cisterntest.WaitFor(t, func() bool {
		runtime.GC()
		return r.pool.Stats().DroppedBatches >= want
	})
	require.Equal(t, want, r.pool.Stats().DroppedBatches)
}

// A batch that is dropped without Close gives its memory back in every state.
func TestDroppedBatchGivesItsMemoryBack(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 1<<20, r.a)
	add := func(submit bool) {
		b := r.pool.NewBatch()
		require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 100)))
		_, err := b.Output(t.Context(), block, 200, 300<<10)
		require.NoError(t, err)
		if submit {
			_, err = b.Submit(t.Context(), r.a)
			require.NoError(t, err)
		}
	}
	add(false)
	add(true)
	func() {
		b := r.pool.NewBatch()
		require.NoError(t, b.Upload(t.Context(), block, 0, make([]byte, 100)))
		_, err := b.Submit(cancelled(), r.a)
		require.Error(t, err)
	}()
	r.pool.NewBatch() // without memory
	require.Equal(t, int64(5), r.pool.Stats().ActiveRequests.Current)
	r.collectDropped(t, 3)
	require.Zero(t, r.pool.Stats().ActiveRequests.Current)

	// A closed batch is not found again, and a reachable one is not found.
	held := r.pool.NewBatch()
	require.NoError(t, held.Upload(t.Context(), block, 0, make([]byte, 100)))
	closed := r.pool.NewBatch()
	require.NoError(t, closed.Upload(t.Context(), block, 0, make([]byte, 100)))
	require.NoError(t, closed.Close())
	runtime.GC()
	runtime.GC()
	require.Equal(t, int64(1), r.pool.Stats().ActiveRequests.Current)
	require.NoError(t, errors.Join(held.Close(), closed.Close(), block.Free()))
	r.collectDropped(t, 3)
}

// The copies of a dropped batch continue in its memory, which no Get returns before they are done.
func TestDroppedBatchWaitsForItsCopies(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block := r.alloc(t, 64<<10, r.a)
	want := bytes.Repeat([]byte{7}, 64<<10)
	open := cisterntest.Hold(t, r.a)
	end := func(block memcache.Block) *transfer.Copy {
		b := r.pool.NewBatch()
		require.NoError(t, b.Upload(t.Context(), block, 0, want))
		end, err := b.Submit(t.Context(), r.a)
		require.NoError(t, err)
		return end
	}(block)
	r.collectDropped(t, 1)
	require.Equal(t, int64(1), r.pool.Stats().Pending)
	other, err := r.pool.Get(t.Context(), 64<<10)
	require.NoError(t, err)
	clear(other.Bytes())
	open()
	require.NoError(t, end.Wait(t.Context()))
	got := make([]byte, len(want))
	err = r.pool.Download(t.Context(), r.a, got, block, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, errors.Join(other.Release(), block.Free()))
	require.Zero(t, r.pool.Stats().Pending)
}
