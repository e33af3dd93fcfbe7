package transfer_test

import (
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/transfer"
)

// A stale handle only compares its number: what the slab's present owner, or the pool, does with it is not looked at.
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

// After the pool's Close the batch's memory is the driver's.
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
