package tensor

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
)

// library is one of matrix products, of which only the size of its workspace is asked.
type library struct {
	device.MatrixMultiplier
	workspace int64
}

func (l library) MatMulWorkspace() (int64, error) { return l.workspace, nil }

// TestFirstProductsAtOnce has room for one workspace. While the first product waits for memory another one takes it.
func TestFirstProductsAtOnce(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("its memory has the size that the test gives it")
	const workspace = 40 << 20
	g := &gpuKernels{rt: r.Runtime, stream: r.Stream(), blas: library{workspace: workspace}}
	full, err := r.cache.Alloc(r.ctx, workspace, r.Stream())
	require.NoError(t, err)
	_, err = g.takeWorkspace(r.ctx)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	require.ErrorContains(t, err, "tensor: MatMul: the library's workspace: ")

	var other device.Range
	remove := r.cache.OnPressure(func(ctx context.Context, _ int64) int64 {
		if other.Bytes == 0 {
			require.NoError(t, full.Free())
			other, err = g.takeWorkspace(ctx)
			require.NoError(t, err)
		}
		return 0 // what was freed is in use again
	})
	defer remove()
	mine, err := g.takeWorkspace(r.ctx)
	require.NoError(t, err)
	assert.Equal(t, other, mine)
	assert.EqualValues(t, workspace, mine.Bytes)
	assert.EqualValues(t, workspace, r.cache.MemoryAllocated())
	again, err := g.takeWorkspace(r.ctx)
	require.NoError(t, err)
	assert.Equal(t, mine, again)
	require.NoError(t, g.close())
	assert.Zero(t, r.cache.MemoryAllocated())
}
