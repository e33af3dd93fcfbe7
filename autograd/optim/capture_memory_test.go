package optim_test

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestCapturesAndDropsLeaveNothing: many whole steps are captured, replayed and dropped. The
// device's memory, the cache's, pinned memory, Go's objects and the goroutines are then the same as
// after the first hundred.
func TestCapturesAndDropsLeaveNothing(t *testing.T) {
	captures := tapetest.Rounds(1000, 300)
	b := tapetest.Open(t, 256<<20)
	p := plan{seed: 3, inputs: 4, classes: 3, hidden: []int{8}, dropout: 0.5, optimizer: 2, schedule: optim.StepLR{Size: 2}, inside: true, clip: 1}
	c := p.start(b)
	x, y := tapetest.Upload(b, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 2, 4), tapetest.Upload(b, []int32{0, 2})
	type memory struct {
		live, reserved, pinned, free int64
		pools, goroutines            int
	}
	now := func() (m memory, objects uint64) {
		// The memory cached for copies depends on how many were in flight at once.
		require.NoError(t, errors.Join(b.RT.Synchronize(b.Ctx), b.RT.Pool().EmptyCache(b.Ctx)))
		runtime.GC()
		runtime.GC() // frees objects of the first steps' finalisers and pools
		var s runtime.MemStats
		runtime.ReadMemStats(&s)
		free, _, err := b.Dev.MemInfo()
		require.NoError(t, err)
		m = memory{b.Cache.MemoryAllocated(), b.Cache.MemoryReserved(), b.RT.Pool().Stats().HeldBytes.Current, free, 0, runtime.NumGoroutine()}
		pools := make(map[any]bool)
		for _, s := range b.Cache.Snapshot().Segments {
			pools[s.PoolID] = true
		}
		m.pools = len(pools)
		return m, s.HeapObjects
	}
	var first memory
	var objects uint64
	for i := range captures {
		var loss *tensor.Tensor
		ctx := b.Ctx
		if i%2 == 1 {
			ctx = c.pool.Context(ctx) // a shared pool in half of the captures
		}
		graph, err := b.RT.Capture(ctx, func(ctx context.Context) (err error) {
			loss, err = c.step(ctx, x, y)
			return err
		})
		require.NoError(t, err)
		require.NoError(t, errors.Join(graph.Replay(b.Ctx), graph.Replay(b.Ctx)))
		require.NoError(t, errors.Join(loss.Release(), graph.Close()))
		if i == 99 {
			first, objects = now()
		}
	}
	last, after := now()
	require.LessOrEqual(t, last.goroutines, first.goroutines) // goroutines of earlier tests may have ended
	last.goroutines = first.goroutines
	require.Equal(t, first, last)
	// Less than one object for each. Bytes are not compared, because the host device's memory is
	// also in the Go heap, and garbage of the last steps is collected late.
	t.Logf("%d objects more after %d captures", int64(after)-int64(objects), captures-100)
	require.Less(t, int64(after)-int64(objects), int64(captures-100), "objects on Go's heap in %d captures", captures-100)
	c.close()
}
