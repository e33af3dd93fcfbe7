package tensor

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// library is one of matrix products that only keeps what it is asked for.
type library struct {
	workspace int64
	asked     []device.Gemm
}

func (l *library) MatMulWorkspace() (int64, error) { return l.workspace, nil }

func (l *library) MatMulEpilogues() bool { return false }

func (l *library) MatMulBFloat16() bool { return false }

func (l *library) MatMul(_ device.Stream, g *device.Gemm) error {
	l.asked = append(l.asked, *g)
	return nil
}

// TestFirstProductsAtOnce has room for one workspace. While the first product waits for memory another one takes it.
func TestFirstProductsAtOnce(t *testing.T) {
	r := newRig(t, 64<<20)
	r.needsHost("its memory has the size that the test gives it")
	const workspace = 40 << 20
	g := &gpuKernels{rt: r.Runtime, stream: r.Stream(), blas: &library{workspace: workspace}}
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

// TestProductsOfABatch asks for every product once, in as few calls as the largest dimension allows.
func TestProductsOfABatch(t *testing.T) {
	const m, n, size = 2, 3, 4
	for _, dims := range [][]int{{5}, {5, 2}, {2, 5}, {2, 5, 3}, {3, 2, 5}, {2, 2}} {
		batch := &kernel.Placement{Dims: dims, Dst: []int{1000, 100, 0}[:len(dims)], Src: []int{0, 70, 7}[:len(dims)]}
		asked := &library{}
		g := &gpuKernels{blas: asked}
		require.NoError(t, g.gemms(batch, device.Gemm{M: m, N: n, A: 1 << 20, B: 1 << 30, C: 1 << 40}, size))
		assert.Len(t, asked.asked, batch.Count()/slices.Max(dims), "%v", dims)
		got := map[device.Ptr][2]device.Ptr{}
		for _, call := range asked.asked {
			for i := range device.Ptr(call.Batch) {
				got[call.C+i*device.Ptr(call.StrideC)*size] = [2]device.Ptr{call.A + i*device.Ptr(call.StrideA)*size, call.B + i*device.Ptr(call.StrideB)*size}
			}
		}
		want := map[device.Ptr][2]device.Ptr{}
		for i := range batch.Count() {
			a, b := batch.At(i)
			want[1<<40+device.Ptr(i*m*n*size)] = [2]device.Ptr{1<<20 + device.Ptr(a*size), 1<<30 + device.Ptr(b*size)}
		}
		assert.Equal(t, want, got, "%v", dims)
	}
}
