package gpuop

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/ptxfiles"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/ptx"
)

func TestMain(m *testing.M) {
	if !ptx.Embedded() {
		ptxfiles.Tensor = os.DirFS("../ptx")
	}
	os.Exit(m.Run())
}

// loader is a device whose kernels are their names.
type loader struct {
	device.ModuleLoader
	noMatrixUnits bool
}

type module struct{ device.Module }

func (l loader) LoadModule(image []byte) (device.Module, error) {
	if l.noMatrixUnits && strings.Contains(string(image), "compute_80") {
		return nil, device.ErrUnsupported
	}
	return module{}, nil
}

func (module) Kernel(name string) (any, error) { return name, nil }

func (module) Close() error { return nil }

// launched is a stream that records its launches.
type launched struct {
	device.Stream
	all []device.Launch
}

func (s *launched) Launch(l *device.Launch) error {
	copied := *l
	copied.Args, copied.Reads, copied.Writes = slices.Clone(l.Args), slices.Clone(l.Reads), slices.Clone(l.Writes)
	s.all = append(s.all, copied)
	return nil
}

func (s *launched) Memset(device.Ptr, byte, int64) error { return nil }

// rig is a backend without a device, and its environment.
type rig struct {
	*Backend
	launched
	calls   backend.Pool
	tf32    bool
	scratch int64 // bytes asked for
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{}
	var err error
	r.Backend, err = New(r, loader{})
	require.NoError(t, err)
	return r
}

func (r *rig) Stream() device.Stream { return &r.launched }

func (r *rig) NewCall(op backend.Op, d backend.Dtype) *backend.Call { return r.calls.New(op, d) }

func (r *rig) Scratch(_ context.Context, bytes int64) (memcache.Block, error) {
	r.scratch += bytes
	return memcache.Block{}, nil
}

func (r *rig) Unkeep(*memcache.Block) error { return nil }

func (r *rig) FreeScratch(context.Context, memcache.Block) {}

func (r *rig) Keep(context.Context, *memcache.Block, int64, int64) (memcache.Block, error) {
	return memcache.Block{}, nil
}

func (r *rig) TF32() bool { return r.tf32 }

// memory returns n elements at an address.
func memory(at device.Ptr, d backend.Dtype, n int) backend.Ref {
	return backend.Ref{Ptr: at, Bytes: int64(n * d.Size()), Dtype: d}
}

// narrowCall returns a call of an operation whose operands are all bfloat16.
func (r *rig) narrowCall(op backend.Op) *backend.Call {
	c := r.NewCall(op, backend.BFloat16)
	for range op.Roles() {
		c.Add(memory(1<<12, backend.BFloat16, 64))
	}
	l := backend.List{Stride: len(op.ListRoles())}
	for range op.ListRoles() {
		l.Refs = append(l.Refs, memory(1<<12, backend.BFloat16, 64))
	}
	c.SetList(l)
	switch op {
	case backend.Attention, backend.AttentionGrad:
		c.Plan = &plan.Attention{E: 8, V: 8}
	case backend.ScanGrad, backend.ScanGradOnto:
		backend.SetParams(c, plan.TakeGrad{Take: plan.Take{Outer: 1, Rows: 4, Count: 4, Inner: 4}})
	case backend.CrossEntropyWithGrad:
		backend.SetParams(c, plan.Entropy{Rows: plan.Rows{Cols: 8, Inner: 1}})
	default:
		backend.SetParams(c, plan.Product{M: 8, N: 8, K: 8})
	}
	return c
}

// TestNativeBFloat16: testdata/bfloat16.txt lists the operations with kernels for bfloat16. Without
// this test, an operation that loses its kernel would silently be upcast.
func TestNativeBFloat16(t *testing.T) {
	r := newRig(t)
	var native []string
	for op := backend.NoOp + 1; op < backend.Ops; op++ {
		yes := r.Supports(r.narrowCall(op))
		if f := op.Family(); f == backend.Map || f == backend.MapGrad {
			assert.True(t, yes, "%s: all functions have one", op.Name())
		} else if yes {
			native = append(native, op.Name())
		}
	}
	want, err := os.ReadFile("testdata/bfloat16.txt")
	require.NoError(t, err)
	assert.Equal(t, string(want), strings.Join(native, "\n")+"\n")
}

// TestEveryKernelIsReached: each kernel of the PTX is an edition of a name, and each name has a
// kernel. Every operation has editions for float32 and float64, or for elements of 4 and 8 bytes. A
// pass of a recurrent layer in one launch is only for float32, and RandPerm only for int64.
func TestEveryKernelIsReached(t *testing.T) {
	reached := map[string]bool{}
	for n, text := range texts[1:] {
		for _, edition := range editions()[n+1] {
			reached[edition] = true
		}
		assert.NotEqual(t, [backend.Dtypes]string{}, editions()[n+1], "there is no kernel %s", text)
	}
	for _, kernel := range ptx.Kernels() {
		assert.True(t, reached[kernel], "nothing launches %s", kernel)
	}
	for op := backend.NoOp + 1; op < backend.Ops; op++ {
		require.NotNil(t, table[op].run, "%s is not done", op.Name())
		for _, d := range []backend.Dtype{backend.Float32, backend.Float64} {
			alone := op.Family() == backend.Recurrence || op.Family() == backend.RecurrenceGrad
			other := op == backend.Convert || op == backend.Randperm
			assert.True(t, other || alone && d == backend.Float64 || table[op].kernel.has(d), "%s of %v", op.Name(), d)
		}
	}
}

// TestConversions: there is a conversion between any two dtypes if the result's dtype has
// arithmetic.
func TestConversions(t *testing.T) {
	for from := range backend.Dtypes {
		for to := range backend.Dtypes {
			if from != backend.NoDtype {
				assert.Equal(t, to.Float(), conversions[from].has(to), "%v to %v", from, to)
			}
		}
	}
}

// TestChoose: each product is computed in the way that docs/decisions/planned-products.md has
// measured to be fastest, and products that were not measured by the library.
func TestChoose(t *testing.T) {
	const mul, bias, relu, sums, masked = backend.MatMul, backend.MatMulAddBias, backend.MatMulAddBiasReLU, backend.MatMulSums, backend.MatMulMasked
	all := &Backend{env: &rig{}, blas: &library{}, fused: true}
	none := &Backend{env: &rig{}}
	plain := &Backend{env: &rig{}, blas: &library{}}
	tf32 := &Backend{env: &rig{tf32: true}, blas: &library{}, fused: true}
	f32, f64, bf := backend.Float32, backend.Float64, backend.BFloat16
	const a, b = 1, 2 // transposed
	for _, c := range []struct {
		on      *Backend
		op      backend.Op
		d       backend.Dtype
		m, n, k int
		trans   int
		want    Way
		why     string
	}{
		{all, mul, f32, 128, 192, 64, b, OwnNarrow, "few tiles and steps"},
		{all, mul, f32, 512, 512, 128, a, OwnNarrow, "few tiles and steps"},
		{all, mul, f32, 10, 512, 1024, a, OwnNarrow, "few tiles and steps"},
		{all, mul, f32, 1024, 512, 512, b, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, mul, f32, 128, 512, 784, b, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, relu, f32, 1000, 500, 300, b, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, sums, f32, 512, 784, 1024, a, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, mul, f32, 512, 512, 1024, a, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, mul, f32, 512, 784, 128, a, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, sums, f32, 512, 784, 64, a, Nowhere, "the library is faster, or it was not measured"},
		{all, mul, f32, 512, 512, 64, a, Library, "nothing follows the product"},
		{all, relu, f32, 64, 512, 784, b, Library, "the library's ReLU makes 0 of NaN, and bias and ReLU are one launch"},
		{all, bias, f32, 1000, 500, 300, b, LibraryBias, "the library adds the bias"},
		{all, bias, f32, 512, 512, 2048, b, LibraryBias, "the library adds the bias"},
		{all, mul, f32, 1024, 512, 512, 0, Library, "nothing follows the product"},
		{all, mul, f32, 1024, 512, 10, 0, Library, "nothing follows the product"},
		{all, sums, f32, 768, 768, 512, a, Nowhere, "the tiles are not one wave of blocks"},
		{all, bias, f32, 1000, 500, 0, b, Library, "the library adds no bias to a batch or to nothing"},
		{all, bias, f64, 1000, 500, 300, b, Library, "the library adds no bias"},
		{all, relu, bf, 1000, 500, 300, b, LibraryBias, "the library adds the bias"},
		{all, mul, f32, 128, 192, 64, a | b, Library, "nothing follows the product"},
		{plain, bias, f32, 1000, 500, 300, b, Library, "the library adds no bias"},
		{none, relu, f32, 1000, 5000, 300, b, Multiply, "there is no library of products"},
		{none, mul, bf, 128, 192, 64, b, Multiply, "there is no library of products"},
		{none, mul, f32, 128, 192, 64, b, OwnNarrow, "few tiles and steps"},
		{tf32, mul, f32, 128, 192, 64, b, Library, "nothing follows the product"},
		// A gradient is masked if its product, and the product of the layer before that takes the
		// sums, are launches of our own.
		{all, masked, f32, 1024, 512, 512, 784 << 2, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, masked, f32, 1024, 512, 10, 512 << 2, OwnWide, "one wave of blocks, of a shape that was measured"},
		{all, masked, f32, 128, 512, 10, 512 << 2, OwnNarrow, "few tiles and steps"},
		{all, masked, f32, 128, 512, 512, 784 << 2, Nowhere, "the tiles are not one wave of blocks"},
		{all, masked, f32, 1024, 512, 10, 4096 << 2, Nowhere, "the sums that follow a masked gradient are not a launch of our own"},
		{all, masked, f64, 1024, 512, 512, 784 << 2, Nowhere, "there are no tiles for the dtype"},
		{tf32, masked, f32, 128, 512, 10, 512 << 2, Nowhere, "the library may use TF32"},
	} {
		p := product{plan.Product{M: c.m, N: c.n, K: c.k, TransA: c.trans&a != 0, TransB: c.trans&b != 0, FanIn: c.trans >> 2}, c.op, c.d, false, true}
		got, why := c.on.choose(p)
		assert.Equal(t, c.want, got, "%+v", p)
		assert.Equal(t, c.why, why, "%+v", p)
	}
	own := product{plan.Product{M: 128, N: 192, K: 64, TransB: true}, mul, f32, false, true}
	batch, unaligned := own, own
	batch.batch, unaligned.aligned = true, false
	for why, p := range map[string]product{"a batch, an empty product or two transposes": batch, "the result is not aligned to 16 bytes": unaligned} {
		w, got := all.own(p)
		assert.Equal(t, Nowhere, w)
		assert.Equal(t, why, got)
	}
}

// library is a library of matrix products that only records its calls.
type library struct{ asked []device.Gemm }

func (l *library) MatMulWorkspace() (int64, error) { return 1 << 10, nil }

func (l *library) MatMulEpilogues() bool { return false }

func (l *library) MatMulBFloat16() bool { return false }

func (l *library) MatMul(_ device.Stream, g *device.Gemm) error {
	l.asked = append(l.asked, *g)
	return nil
}

// TestProductsOfABatch requests every product once, in as few calls as the largest dimension
// allows.
func TestProductsOfABatch(t *testing.T) {
	const m, n, size = 2, 3, 4
	for _, dims := range [][]int{{5}, {5, 2}, {2, 5}, {2, 5, 3}, {3, 2, 5}, {2, 2}} {
		batch := &plan.Placement{Dims: dims, Dst: []int{1000, 100, 0}[:len(dims)], Src: []int{0, 70, 7}[:len(dims)]}
		asked := &library{}
		b := &Backend{blas: asked}
		require.NoError(t, b.gemms(batch, &device.Gemm{M: m, N: n, A: 1 << 20, B: 1 << 30, C: 1 << 40}, size))
		assert.Len(t, asked.asked, batch.Count()/slices.Max(dims), "%v", dims)
		got := map[device.Ptr][2]device.Ptr{}
		for _, call := range asked.asked {
			for i := range device.Ptr(call.Batch) {
				got[call.C+i*device.Ptr(call.StrideC)*size] = [2]device.Ptr{call.A + i*device.Ptr(call.StrideA)*size, call.B + i*device.Ptr(call.StrideB)*size}
			}
		}
		want := map[device.Ptr][2]device.Ptr{}
		for i := range batch.Count() {
			x, y := batch.At(i)
			want[1<<40+device.Ptr(i*m*n*size)] = [2]device.Ptr{1<<20 + device.Ptr(x*size), 1<<30 + device.Ptr(y*size)}
		}
		assert.Equal(t, want, got, "%v", dims)
	}
}

// TestProductsOfBFloat16 requests bfloat16 products with their bias. The elements of a batch's
// matrices are two bytes apart.
func TestProductsOfBFloat16(t *testing.T) {
	r := newRig(t)
	asked := &library{}
	r.blas, r.fused = asked, true
	product := func(op backend.Op, p plan.Product, batch any) *backend.Call {
		c := r.NewCall(op, backend.BFloat16)
		for i, n := range []int{15, 12, 20, 5}[:len(op.Roles())] {
			c.Add(memory(device.Ptr(1+i)<<12, backend.BFloat16, n))
		}
		backend.SetParams(c, p)
		c.Plan = batch
		return c
	}
	p := plan.Product{M: 3, N: 5, K: 4, TransB: true}
	assert.False(t, r.Supports(product(backend.MatMul, p, nil)), "the library has none")
	require.NoError(t, r.Do(t.Context(), product(backend.MatMulAddBias, p, nil)))
	require.Len(t, asked.asked, 1)
	assert.True(t, asked.asked[0].BFloat16)
	assert.EqualValues(t, 4<<12, asked.asked[0].Bias)
	asked.asked = nil
	batch := &plan.Placement{Dims: []int{2, 3}, Dst: []int{4, 0}, Src: []int{0, 4}}
	require.NoError(t, r.Do(t.Context(), product(backend.MatMul, plan.Product{M: 1, N: 1, K: 4}, batch)))
	require.Len(t, asked.asked, 2)
	assert.Equal(t, device.Ptr(8), asked.asked[1].A-asked.asked[0].A)
}

// TestUnsupported: an operation of a dtype without a kernel returns an error that names both.
func TestUnsupported(t *testing.T) {
	r := newRig(t)
	err := r.Do(t.Context(), r.narrowCall(backend.Dropout))
	require.ErrorIs(t, err, backend.ErrUnsupported)
	assert.ErrorContains(t, err, fmt.Sprint("tensor: dropout: ", backend.ErrUnsupported, ": there is no kernel dropout_bf16"))
}

// TestFusedEntropy: a cross entropy and its gradient are one launch for a single loss of few, short
// rows.
func TestFusedEntropy(t *testing.T) {
	r := newRig(t)
	call := func(d backend.Dtype, rows, classes int, each bool) *backend.Call {
		c := r.NewCall(backend.CrossEntropyWithGrad, d)
		for range 2 {
			c.Add(memory(1<<12, d, 1))
		}
		c.Add(memory(2<<12, d, rows*classes))
		backend.SetParams(c, plan.Entropy{Rows: plan.Rows{Cols: classes, Inner: 1}, Each: each})
		return c
	}
	assert.True(t, r.Supports(call(backend.Float32, 4096, 256, false)))
	assert.True(t, r.Supports(call(backend.Float64, 1, 2, false)))
	assert.False(t, r.Supports(call(backend.Float32, 4097, 2, false)))
	assert.False(t, r.Supports(call(backend.Float32, 2, 257, false)))
	assert.False(t, r.Supports(call(backend.Float32, 2, 2, true)))
	assert.False(t, r.Supports(call(backend.Float32, 0, 2, false)))
	assert.False(t, r.Supports(call(backend.BFloat16, 2, 2, false)))
}
