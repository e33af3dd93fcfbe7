package upcast

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/device/null"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/leaktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/backend"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// recorder is a backend that records its calls, and the environment of both backends.
type recorder struct {
	t      *testing.T
	cache  *memcache.Cache
	stream device.Stream
	calls  backend.Pool
	native func(c *backend.Call) bool // of narrow calls
	did    []string
	fails  int        // the number of the call that fails; 0 for none
	lacks  backend.Op // an operation without a kernel
	blocks map[device.Ptr]string
}

func newRecorder(t *testing.T) (*recorder, *Backend) {
	dev, err := null.New(null.Config{Capacity: 64 << 20})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	s := stacktest.New(t, stacktest.Config{Device: dev})
	r := &recorder{t: t, cache: s.Cache, stream: s.Stream, native: func(*backend.Call) bool { return false }, blocks: map[device.Ptr]string{}}
	return r, New(r, r)
}

func (r *recorder) Stream() device.Stream { return r.stream }

func (r *recorder) NewCall(op backend.Op, d backend.Dtype) *backend.Call { return r.calls.New(op, d) }

func (r *recorder) Scratch(ctx context.Context, bytes int64) (memcache.Block, error) {
	b, err := r.cache.AllocWorkspace(ctx, bytes, r.stream)
	if err == nil {
		r.blocks[b.Ptr()] = fmt.Sprint("copy", len(r.blocks))
	}
	return b, err
}

func (r *recorder) FreeScratch(ctx context.Context, b memcache.Block) {
	require.NoError(r.t, b.FreeContext(ctx))
}

func (r *recorder) Keep(context.Context, *memcache.Block, int64, int64) (memcache.Block, error) {
	return memcache.Block{}, nil
}

func (r *recorder) Unkeep(*memcache.Block) error { return nil }

func (r *recorder) TF32() bool { return false }

func (r *recorder) Supports(c *backend.Call) bool {
	return !c.Narrow && !c.Mixed() || c.Op == backend.Convert || r.native(c)
}

// name returns an operand as the test named it, or the copy of an operand, with its type.
func (r *recorder) name(x backend.Ref) string {
	if x.None() {
		return "-"
	}
	if name := r.blocks[x.Ptr]; name != "" {
		return fmt.Sprint(name, " ", x.Dtype)
	}
	return fmt.Sprint(uint64(x.Ptr), " ", x.Dtype)
}

func (r *recorder) Do(_ context.Context, c *backend.Call) error {
	defer c.Free()
	require.True(r.t, r.Supports(c), "%s of %v", c.Op.Name(), c.Dtype)
	s := fmt.Sprint(c.Op.Name(), " in ", c.Dtype, ":")
	for i := range c.Args[:c.N] {
		s += " " + r.name(c.Args[i])
	}
	for i := range c.List.Refs {
		s += " " + r.name(c.List.Refs[i])
	}
	if c.List.Stride > 0 {
		s += fmt.Sprint(" ", c.List.Own, " ", backend.ParamsOf[[8]float64](c.Params())[7])
	}
	r.did = append(r.did, s)
	if c.Op == r.lacks {
		return c.Failed(c.Unsupported())
	}
	if len(r.did) == r.fails {
		return errors.New("failed")
	}
	return nil
}

func (r *recorder) Prepare(context.Context) error { return nil }

func (r *recorder) Close() error { return nil }

func ref(at device.Ptr, d backend.Dtype) backend.Ref {
	return backend.Ref{Ptr: at, Bytes: int64(8 * d.Size()), Dtype: d}
}

const (
	f32 = backend.Float32
	bf  = backend.BFloat16
)

func (r *recorder) call(op backend.Op, d backend.Dtype, refs ...backend.Ref) *backend.Call {
	c := r.NewCall(op, d)
	for _, x := range refs {
		c.Add(x)
	}
	return c
}

// TestRoles: operands that are read are converted before, results are converted afterwards, and
// memory that appears twice has one copy.
func TestRoles(t *testing.T) {
	for _, c := range []struct {
		op   backend.Op
		refs []backend.Ref
		want []string
	}{
		{backend.Add, []backend.Ref{ref(1, f32), ref(2, f32), ref(3, f32)}, []string{"add in float32: 1 float32 2 float32 3 float32"}},
		{backend.Add, []backend.Ref{ref(1, bf), ref(2, bf), ref(3, bf)}, []string{
			"convert in float32: copy1 float32 2 bfloat16", "convert in float32: copy2 float32 3 bfloat16",
			"add in float32: copy0 float32 copy1 float32 copy2 float32", "convert in bfloat16: 1 bfloat16 copy0 float32"}},
		{backend.Add, []backend.Ref{ref(1, bf), ref(1, bf), ref(3, bf)}, []string{
			"convert in float32: copy0 float32 1 bfloat16", "convert in float32: copy1 float32 3 bfloat16",
			"add in float32: copy0 float32 copy0 float32 copy1 float32", "convert in bfloat16: 1 bfloat16 copy0 float32"}},
		{backend.GatherGrad, []backend.Ref{ref(1, bf), ref(2, bf), ref(3, backend.Int32)}, []string{
			"convert in float32: copy0 float32 1 bfloat16", "convert in float32: copy1 float32 2 bfloat16",
			"gather grad in float32: copy0 float32 copy1 float32 3 int32", "convert in bfloat16: 1 bfloat16 copy0 float32"}},
		{backend.Normalize, []backend.Ref{ref(1, bf), ref(2, backend.Float64), ref(3, bf), {}, {}}, []string{
			"convert in float32: copy1 float32 3 bfloat16", "normalize in float32: copy0 float32 2 float64 copy1 float32 - -",
			"convert in bfloat16: 1 bfloat16 copy0 float32"}},
	} {
		r, b := newRecorder(t)
		require.NoError(t, b.Do(t.Context(), r.call(c.op, c.refs[0].Dtype, c.refs...)))
		assert.Equal(t, c.want, r.did)
		assert.Zero(t, r.cache.MemoryAllocated())
	}
}

// TestNative: a call that the backend supports is passed on unchanged.
func TestNative(t *testing.T) {
	r, b := newRecorder(t)
	r.native = func(*backend.Call) bool { return true }
	require.NoError(t, b.Do(t.Context(), r.call(backend.Add, bf, ref(1, bf), ref(2, bf), ref(3, bf))))
	assert.Equal(t, []string{"add in bfloat16: 1 bfloat16 2 bfloat16 3 bfloat16"}, r.did)
}

// TestLists: items that must be upcast run one by one in the same memory, each with its own numbers
// and the shared ones. Other lists run as a whole.
func TestLists(t *testing.T) {
	for grad, want := range map[backend.Dtype][]string{
		f32: {"adagrad step in float32: 1 float32 2 float32 3 float32 - - 11 float32 12 float32 13 float32 - - [10 20] 0.5"},
		bf: {
			"convert in float32: copy0 float32 2 bfloat16", "adagrad step in float32: 1 float32 copy0 float32 3 float32 - - [10] 0.5",
			"convert in float32: copy0 float32 12 bfloat16", "adagrad step in float32: 11 float32 copy0 float32 13 float32 - - [20] 0.5",
		},
	} {
		r, b := newRecorder(t)
		c := r.NewCall(backend.AdagradStep, f32)
		backend.SetParams(c, [8]float64{7: 0.5})
		l := backend.List{Stride: 5, Width: 1, Own: []float64{10, 20}}
		for at := device.Ptr(0); at < 20; at += 10 {
			l.Refs = append(l.Refs, ref(at+1, f32), ref(at+2, grad), ref(at+3, f32), backend.Ref{}, backend.Ref{})
		}
		c.SetList(l)
		require.NoError(t, b.Do(t.Context(), c))
		assert.Equal(t, want, r.did)
		assert.Zero(t, r.cache.MemoryAllocated())
	}
}

// TestFusions: a fusion is upcast if its base would be. If the base is native, the runtime is
// faster without the fusion.
func TestFusions(t *testing.T) {
	r, b := newRecorder(t)
	masked := func(d backend.Dtype) *backend.Call {
		return r.call(backend.MatMulMasked, d, ref(1, d), ref(2, d), ref(3, d), ref(4, d))
	}
	for _, c := range []struct {
		native []backend.Op
		want   bool
	}{{nil, true}, {[]backend.Op{backend.MatMul}, false}, {[]backend.Op{backend.MatMul, backend.MatMulMasked}, true}} {
		r.native = func(x *backend.Call) bool {
			for _, op := range c.native {
				if op == x.Op {
					return true
				}
			}
			return false
		}
		call := masked(bf)
		assert.Equal(t, c.want, b.Supports(call), "%v", c.native)
		assert.Equal(t, []any{backend.MatMulMasked, bf, true}, []any{call.Op, call.Dtype, call.Narrow}, "the call is as it was")
		assert.True(t, b.Supports(masked(f32)))
	}

	// A fusion in which a part reads what another part rounds is native, or runs in parts.
	r.native = func(x *backend.Call) bool { return x.Dtype == f32 }
	for _, op := range []backend.Op{backend.AddNormalize, backend.NormalizeGradOnto, backend.ScanGradOnto} {
		assert.False(t, b.Supports(r.call(op, bf, ref(1, bf), ref(2, bf), ref(3, bf))), op.Name())
		assert.True(t, b.Supports(r.call(op, f32, ref(1, f32), ref(2, f32), ref(3, f32))), op.Name())
	}
	assert.True(t, b.Supports(masked(bf)))
}

// TestErrors: errors leave neither memory nor a result.
func TestErrors(t *testing.T) {
	for fails := 1; fails <= 4; fails++ {
		r, b := newRecorder(t)
		r.fails = fails
		require.EqualError(t, b.Do(t.Context(), r.call(backend.Add, bf, ref(1, bf), ref(2, bf), ref(3, bf))), "failed")
		assert.Len(t, r.did, fails)
		assert.Zero(t, r.cache.MemoryAllocated())
	}
	r, b := newRecorder(t)
	r.lacks = backend.Exp
	err := b.Do(t.Context(), r.call(backend.Exp, bf, ref(1, bf), ref(2, bf)))
	require.ErrorIs(t, err, backend.ErrUnsupported)
	require.EqualError(t, err, "tensor: exp: not supported by the device: there is no kernel for float32, in which bfloat16 is computed")
	assert.Zero(t, r.cache.MemoryAllocated())
	huge := backend.Ref{Ptr: 1, Bytes: 1 << 31, Dtype: bf}
	require.ErrorIs(t, b.Do(t.Context(), r.call(backend.Add, bf, ref(1, bf), ref(2, bf), huge)), memcache.ErrOutOfMemory)
	assert.Zero(t, r.cache.MemoryAllocated())
}
