package transfer_test

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/transfer"
)

// When a stream refuses a step, the steps before it run, and their memory is in flight until they
// have.
func TestBatchQueuedInPart(t *testing.T) {
	r := newRig(t, transfer.Config{})
	block, data := r.alloc(t, 4096, r.a), fill(make([]byte, 4096), 1)
	_, err := r.pool.Fill(t.Context(), r.a, block, 0, 4096, 9)
	require.NoError(t, err)
	open := cisterntest.Hold(t, r.a)
	b := r.pool.NewBatch()
	require.NoError(t, b.Upload(t.Context(), block, 0, data))
	require.NoError(t, b.Launch(&device.Launch{Name: "nothing to run"}, block))
	_, err = b.Output(t.Context(), block, 0, 4096)
	require.NoError(t, err)
	_, err = b.Submit(t.Context(), r.a)
	require.ErrorIs(t, err, device.ErrInvalid)
	require.ErrorContains(t, err, "transfer: Submit of 8192 bytes")
	got := []byte{1, 2, 3}
	require.ErrorIs(t, b.CollectOne(t.Context(), 0, &got), device.ErrInvalid)
	require.Equal(t, []byte{1, 2, 3}, got)
	require.NoError(t, b.Close())
	require.Positive(t, r.pool.Stats().Pending, "the upload is queued")
	before := r.pool.Stats().Misses
	for range 2 {
		next := r.get(t, 64<<10)
		fill(next.Bytes(), 0xee)
		defer next.Release()
	}
	require.Equal(t, before+2, r.pool.Stats().Misses, "handed out under a copy")
	open()
	require.Equal(t, data, r.read(t, r.a, block))
	require.NoError(t, block.Free())
	require.NoError(t, r.pool.EmptyCache(t.Context()))
}

// Memory of a failed copy is not reused, because the device may still use it.
func TestMemoryOfAFailedCopy(t *testing.T) {
	for _, released := range []bool{true, false} { // before the copy has failed, or after
		r := newRig(t, transfer.Config{})
		dev := r.host(t)
		r.Faulted = true
		block := r.alloc(t, 4096, r.a)
		b := r.get(t, 4096)
		open := cisterntest.Hold(t, r.a)
		dev.Fail(host.FaultCopy, 1)
		c, err := r.pool.H2D(t.Context(), r.a, block, 0, b, 0, 4096)
		require.NoError(t, err)
		if released {
			require.NoError(t, b.Release())
		}
		open()
		require.ErrorIs(t, c.Wait(t.Context()), device.ErrSticky)
		if !released {
			require.ErrorIs(t, b.Check(), device.ErrSticky)
			require.Nil(t, b.Bytes())
			require.NoError(t, b.Release())
		}
		_, err = r.pool.Get(t.Context(), 4096)
		require.ErrorIs(t, err, device.ErrSticky)
		require.Zero(t, r.pool.Stats().AllocatedBytes.Current, "it is still cached")
	}
}

// Goroutines may share a batch: each entry is complete, outputs are separate, and one Submit
// succeeds.
func TestBatchOfManyGoroutines(t *testing.T) {
	r := newRig(t, transfer.Config{})
	b := r.pool.NewBatch()
	var mu sync.Mutex
	want := map[int][]byte{}
	var wg sync.WaitGroup
	for g := range 8 {
		block := r.alloc(t, 8<<10, r.a)
		defer block.Free()
		wg.Go(func() {
			for i := range 30 {
				data := fill(make([]byte, 250), byte(30*g+i))
				err := b.Upload(t.Context(), block, int64(250*i), data)
				index, outputErr := b.Output(t.Context(), block, int64(250*i), 250)
				if err != nil || outputErr != nil {
					t.Error(err, outputErr)
				}
				mu.Lock()
				want[index] = data
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var submitted atomic.Int64
	for range 4 {
		wg.Go(func() {
			if _, err := b.Submit(t.Context(), r.a); err == nil {
				submitted.Add(1)
			} else if !errors.Is(err, transfer.ErrInvalid) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.EqualValues(t, 1, submitted.Load())
	require.Len(t, want, b.Outputs())
	var got [][]byte
	require.NoError(t, b.Collect(t.Context(), &got))
	for index, data := range want {
		require.Equal(t, data, got[index])
	}
	require.NoError(t, b.Close())
	idle(t, r.pool)
}
