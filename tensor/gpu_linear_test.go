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
		require.NoError(t, g.gemms(batch, &device.Gemm{M: m, N: n, A: 1 << 20, B: 1 << 30, C: 1 << 40}, size))
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

// TestProductsOfBFloat16 are asked for as such, with their bias, and matrices of a batch are two bytes an element apart.
func TestProductsOfBFloat16(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	r.needsHost("its kernels are not the GPU's")
	asked := &library{workspace: 1 << 10}
	g := &gpuKernels{rt: r.Runtime, stream: r.Stream(), blas: asked, fused: true}
	defer func() { require.NoError(t, g.close()) }()
	a, b, bias := put(r, make([]BF16, 12), 3, 4), put(r, make([]BF16, 20), 5, 4), put(r, make([]BF16, 5), 5)
	dst := put(r, make([]BF16, 15), 3, 5)
	require.NoError(t, g.matmul(r.ctx, kernel.MatMul{M: 3, N: 5, K: 4, TransB: true}, dst, a, b, epilogue{bias: bias}))
	require.Len(t, asked.asked, 1)
	assert.True(t, asked.asked[0].BFloat16)
	assert.Equal(t, bias.ptr(), asked.asked[0].Bias)
	asked.asked = nil
	batch := &kernel.Placement{Dims: []int{2, 3}, Dst: []int{4, 0}, Src: []int{0, 4}}
	require.NoError(t, g.matmul(r.ctx, kernel.MatMul{M: 1, N: 1, K: 4, Batch: batch}, dst, a, b, epilogue{}))
	require.Len(t, asked.asked, 2)
	assert.Equal(t, device.Ptr(8), asked.asked[1].A-asked.asked[0].A)
	assert.False(t, g.doesBFloat16("matmul"), "the library has none")
}

// TestBFloat16LaunchesOfAttention have a block for each tile of rows, of fewer rows where heads are wide.
func TestBFloat16LaunchesOfAttention(t *testing.T) {
	for head, want := range map[int]struct {
		suffix string
		grid   uint32
		block  uint32
	}{64: {"_64_bf16", 2, 128}, 65: {"_128_bf16", 4, 64}, 128: {"_128_bf16", 4, 64}} {
		l := &gpuLaunch{suffix: "_bf16"}
		l.Grid = [3]uint32{9, 7, 3}
		l.attentionTiles(&kernel.Attention{E: 8, V: head}, 100)
		assert.Equal(t, want.suffix, l.suffix)
		assert.Equal(t, [3]uint32{want.grid, 7, 1}, l.Grid)
		assert.Equal(t, [3]uint32{want.block, 1, 1}, l.Block)
	}
	g := &gpuKernels{hasMatrixUnits: func() bool { return true }}
	assert.True(t, g.attendsBFloat16(&kernel.Attention{E: 128, V: 1}))
	assert.False(t, g.attendsBFloat16(&kernel.Attention{E: 1, V: 129}))
	assert.False(t, g.attendsBFloat16(&kernel.Attention{E: 8, V: 8, Masking: kernel.BoolMask}))
	g.hasMatrixUnits = func() bool { return false }
	assert.False(t, g.attendsBFloat16(&kernel.Attention{E: 8, V: 8}))
}

// gradientsOnly does steps of gradients of bfloat16, and nothing else in it.
type gradientsOnly struct{ kernels }

func (gradientsOnly) doesBFloat16(operation string) bool { return operation == "adamGrad" }

func (gradientsOnly) attendsBFloat16(*kernel.Attention) bool { return false }

func TestStepsOfBFloat16ParametersAreWidened(t *testing.T) {
	w := newWideKernels(nil, gradientsOnly{}, nil)
	narrow, full := &Tensor{handle: &handle{dtype: BFloat16}}, &Tensor{handle: &handle{dtype: Float32}}
	var none *Tensor
	assert.False(t, w.anyWidens("adam", updated{&narrow, &full, &full, &full, &none}))
	assert.True(t, w.anyWidens("adam", updated{&narrow, &narrow, &full, &full, &none}))
	assert.True(t, w.anyWidens("sgd", updated{&narrow, &full}))
}
