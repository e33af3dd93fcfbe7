package transfer_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/transfer"
)

// meddler calls itself at the start of every operation.
type meddler func(transfer.Op)

func (m meddler) Start(ctx context.Context, op transfer.Op) (context.Context, transfer.Operation) {
	m(op)
	return ctx, nil
}

// Driver calls for a batch's memory and its Submit run while other goroutines use the batch.
func TestBatchIsNotLockedOverItsCalls(t *testing.T) {
	var b *transfer.Batch
	var during []transfer.Op
	var refused []error
	r := newRig(t, transfer.Config{Observer: meddler(func(op transfer.Op) {
		during = append(during, op)
		b.Outputs()
		if op == transfer.OpBatch {
			refused = append(refused, b.Launch(&device.Launch{}), b.Collect(t.Context(), new([][]byte)))
			require.NoError(t, b.Close())
		}
	})})
	block := r.alloc(t, 4096, r.a)
	b = r.pool.NewBatch()
	data := fill(make([]byte, 4096), 3)
	require.NoError(t, b.Upload(t.Context(), block, 0, data))
	c, err := b.Submit(t.Context(), r.a)
	require.NoError(t, err)
	require.Equal(t, []transfer.Op{transfer.OpPinnedAlloc, transfer.OpBatch}, during)
	for _, err := range refused {
		require.ErrorIs(t, err, transfer.ErrInvalid)
	}
	idle(t, r.pool) // Submit has released the memory for Close
	require.NoError(t, c.Wait(t.Context()))
	got := make([]byte, 4096)
	require.NoError(t, r.pool.Download(t.Context(), r.a, got, block, 0))
	require.Equal(t, data, got, "what was submitted runs")
	var out []byte
	require.ErrorIs(t, b.CollectOne(t.Context(), 0, &out), transfer.ErrClosed)
	require.NoError(t, b.Close())
	require.NoError(t, block.Free())
}

// A batch that is closed while the driver allocates memory for it releases that memory.
func TestBatchClosedUnderAllocation(t *testing.T) {
	var b *transfer.Batch
	r := newRig(t, transfer.Config{Observer: meddler(func(op transfer.Op) {
		if op == transfer.OpPinnedAlloc {
			require.NoError(t, b.Close())
		}
	})})
	block := r.alloc(t, 100, r.a)
	b = r.pool.NewBatch()
	_, err := b.Output(t.Context(), block, 0, 100)
	require.ErrorIs(t, err, transfer.ErrClosed)
	idle(t, r.pool)
	require.NoError(t, block.Free())
}
