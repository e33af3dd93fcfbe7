package gorgonia_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

// The library keeps only the address that Alloc returned.
func TestMemoryIsFoundByItsAddress(t *testing.T) {
	e := newEngine(t, "host")
	var tensors []*g.Dense
	for n := 1; n < 3_000_000; n = n*3 + 1 {
		tensors = append(tensors, of(t, e, make([]float32, n), n))
	}
	for _, d := range tensors {
		want, _, err := e.Block(d)
		require.NoError(t, err)
		if n := d.Size(); n > 1 {
			inside, err := d.Slice(g.S(n/2, n))
			require.NoError(t, err)
			block, offset, err := e.Block(inside.(*g.Dense))
			require.NoError(t, err)
			assert.Equal(t, want, block)
			assert.EqualValues(t, n/2*4, offset)
		}
		require.NoError(t, e.Release(d))
		assert.Nil(t, d.Raw)
	}
	assert.Zero(t, e.cache.MemoryAllocated())
}

// Without a call of Free, a dropped tensor stays allocated, also after a garbage collection.
func TestDroppedTensorsStayUntilTheLifetimeCloses(t *testing.T) {
	e := newEngine(t, "host")
	lifetime := e.NewLifetime()
	for range 100 {
		g.New(g.WithEngine(e.Engine), g.Of(g.Float32), g.WithShape(128))
	}
	runtime.GC()
	runtime.GC()
	assert.EqualValues(t, 100*512, e.cache.MemoryAllocated())
	require.NoError(t, lifetime.Close())
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestNewTensorsAreZero(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, count(100), 100)
	at := d.Uintptr()
	require.NoError(t, e.Release(d))
	d, err := e.New(g.Of(g.Float32), g.WithShape(100))
	require.NoError(t, err)
	require.Equal(t, at, d.Uintptr())
	assert.Equal(t, make([]float32, 100), d.Data())
}

// slow queues a slow write of 7 to the whole block.
func slow(t *testing.T, s device.Stream, b memcache.Block) {
	t.Helper()
	data, err := s.Device().(device.HostVisible).Bytes(b.Ptr(), b.Size())
	require.NoError(t, err)
	require.NoError(t, s.Launch(&device.Launch{
		Name: "slow",
		Func: func() {
			time.Sleep(20 * time.Millisecond)
			for i := range data {
				data[i] = 7
			}
		},
		Writes: []device.Range{{Ptr: b.Ptr(), Bytes: b.Size()}},
	}))
}

// A block that was freed with work queued on its stream is not accessed by the host before that
// work has run.
func TestAllocWaitsForTheEarlierOwnersWork(t *testing.T) {
	e := newEngine(t, "host")
	b, err := e.cache.Alloc(t.Context(), 512, e.stream)
	require.NoError(t, err)
	slow(t, e.stream, b)
	require.NoError(t, b.Free())
	d := g.New(g.WithEngine(e.Engine), g.Of(g.Uint8), g.WithShape(512))
	require.EqualValues(t, b.Ptr(), d.Uintptr())
	require.NoError(t, e.Sync(t.Context()))
	assert.Equal(t, make([]byte, 512), d.Data(), "the earlier owner's work came after the zeros")
}

func TestOperationsWaitForTheStream(t *testing.T) {
	e, other := newEngine(t, "host"), newEngine(t, "host")
	for name, f := range map[string]func(a, b *g.Dense) (g.Tensor, error){
		"engine of the left operand":  func(a, b *g.Dense) (g.Tensor, error) { return g.Add(a, b) },
		"engine of the right operand": func(a, b *g.Dense) (g.Tensor, error) { return g.Add(b, a) },
	} {
		t.Run(name, func(t *testing.T) {
			a := of(t, e, make([]uint8, 512), 512)
			b := of(t, other, make([]uint8, 512), 512)
			block, _, err := e.Block(a)
			require.NoError(t, err)
			slow(t, e.stream, block)
			sum, err := f(a, b)
			require.NoError(t, err)
			assert.Equal(t, bytes.Repeat([]byte{7}, 512), sum.Data())
		})
	}
	t.Run("without a new result", func(t *testing.T) {
		a, r := of(t, e, make([]uint8, 512), 512), of(t, e, make([]uint8, 512), 512)
		block, _, err := e.Block(a)
		require.NoError(t, err)
		slow(t, e.stream, block)
		_, err = g.Add(a, r, g.WithReuse(r))
		require.NoError(t, err)
		assert.Equal(t, bytes.Repeat([]byte{7}, 512), r.Data())
	})
	t.Run("Sync", func(t *testing.T) {
		a := of(t, e, make([]uint8, 512), 512)
		block, _, err := e.Block(a)
		require.NoError(t, err)
		slow(t, e.stream, block)
		require.NoError(t, e.Sync(t.Context()))
		assert.Equal(t, bytes.Repeat([]byte{7}, 512), a.Data())
		slow(t, e.stream, block)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		assert.ErrorIs(t, e.Sync(ctx), context.Canceled)
		require.NoError(t, e.Sync(t.Context()))
	})
}

// Methods that access memory without calling the engine work, because the memory is the host's.
func TestDirectAccess(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, count(6), 2, 3)
	plain := g.New(g.WithShape(2, 3), g.WithBacking(count(6)))
	for _, format := range []string{"%v", "%+v", "%s", "%-v", "%#v"} {
		assert.Equal(t, fmt.Sprintf(format, plain), fmt.Sprintf(format, d))
	}
	assert.Equal(t, plain.String(), d.String())
	assert.Equal(t, count(6), d.Data())
	assert.Equal(t, count(6), d.Float32s())
	assert.True(t, d.Eq(plain))
	d.Set(1, float32(9))
	require.NoError(t, d.SetAt(float32(8), 1, 2))
	x, err := d.At(0, 1)
	require.NoError(t, err)
	assert.Equal(t, float32(9), x)
	require.NoError(t, d.Memset(float32(3)))
	assert.Equal(t, []float32{3, 3, 3, 3, 3, 3}, d.Data())
	d.Zero()
	assert.Equal(t, make([]float32, 6), d.Data())

	number, err := e.New(g.FromScalar(float32(5)))
	require.NoError(t, err)
	assert.Equal(t, float32(5), number.ScalarValue())
	assert.Equal(t, float32(5), number.Data())
	assert.Same(t, e.Engine, number.Engine())
}

func TestSerialisation(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, count(6), 2, 3)
	data, err := d.GobEncode()
	require.NoError(t, err)
	var back g.Dense
	require.NoError(t, back.GobDecode(data))
	assert.Equal(t, count(6), back.Data())
	assert.ErrorIs(t, e.Release(&back), gorgonia.ErrForeign)
	require.NoError(t, e.Adopt(&back))
	require.NoError(t, e.Adopt(&back))
	assert.Equal(t, count(6), back.Data())
	assert.EqualValues(t, 1024, e.cache.MemoryAllocated())

	var npy, csv bytes.Buffer
	require.NoError(t, d.WriteNpy(&npy))
	require.NoError(t, d.WriteCSV(&csv))
	assert.Equal(t, "1,2,3\n4,5,6\n", csv.String())
	var read g.Dense
	require.NoError(t, read.ReadNpy(&npy))
	require.NoError(t, e.Adopt(&read))
	assert.Equal(t, count(6), read.Data())
	require.NoError(t, e.Release(&read))
	require.NoError(t, e.Release(&back))
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
}

// The library's own copies work in both directions.
func TestCopies(t *testing.T) {
	e, other := newEngine(t, "host"), newEngine(t, "host")
	host := g.New(g.WithShape(2, 3), g.WithBacking(count(6)))
	a, err := e.New(g.Of(g.Float32), g.WithShape(2, 3))
	require.NoError(t, err)
	b, err := other.New(g.Of(g.Float32), g.WithShape(2, 3))
	require.NoError(t, err)
	require.NoError(t, g.Copy(a, host))
	require.NoError(t, a.CopyTo(b))
	back := g.New(g.Of(g.Float32), g.WithShape(2, 3))
	require.NoError(t, g.Copy(back, b))
	assert.Equal(t, count(6), back.Data())
	require.NoError(t, host.CopyTo(a))
	assert.Equal(t, count(6), a.Data())
}

func TestMaterializeOfStridedViews(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, count(24), 4, 6)
	v, err := d.Slice(nil, g.S(1, 3))
	require.NoError(t, err)
	before := e.cache.MemoryAllocated()
	m := v.Materialize().(*g.Dense)
	assert.Equal(t, []float32{2, 3, 8, 9, 14, 15, 20, 21}, m.Data())
	assert.Equal(t, before+512, e.cache.MemoryAllocated())
	require.NoError(t, e.Release(m))

	// Clone copies the range that the view spans, and keeps the strides.
	c := v.(*g.Dense).Clone().(*g.Dense)
	assert.Equal(t, []int{6, 1}, c.Strides())
	assert.EqualValues(t, 20*4, c.MemSize())
	same(t, v, c)
	require.NoError(t, e.Release(c))
	assert.Equal(t, before, e.cache.MemoryAllocated())
}

func TestTransposition(t *testing.T) {
	want := []float32{1, 4, 2, 5, 3, 6}
	for name, f := range map[string]func(*g.Dense) (*g.Dense, error){
		"T and Materialize": func(d *g.Dense) (*g.Dense, error) {
			if err := d.T(); err != nil {
				return nil, err
			}
			return d.Materialize().(*g.Dense), nil
		},
		"T and Transpose": func(d *g.Dense) (*g.Dense, error) {
			if err := d.T(); err != nil {
				return nil, err
			}
			return d, d.Transpose()
		},
		"T and Reshape": func(d *g.Dense) (*g.Dense, error) {
			if err := d.T(); err != nil {
				return nil, err
			}
			return d, d.Reshape(3, 2)
		},
		"SafeT and Transpose": func(d *g.Dense) (*g.Dense, error) {
			s, err := d.SafeT()
			if err != nil {
				return nil, err
			}
			return s, s.Transpose()
		},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, "host")
			d := of(t, e, count(6), 2, 3)
			moved, err := f(d)
			require.NoError(t, err)
			assert.Equal(t, want, moved.Data())
			assert.Equal(t, g.Shape{3, 2}, moved.Shape())
			if moved != d {
				require.NoError(t, e.Release(moved))
			}
			require.NoError(t, e.Release(d))
			assert.Zero(t, e.cache.MemoryAllocated())
		})
	}
}

// Reshape ignores the error of Transpose, so the next operation returns it.
func TestErrorsThatTheLibraryIgnoresAreParked(t *testing.T) {
	e := openEngine(t, "host")
	defer e.dev.Close()
	defer e.Close()
	d := of(t, e, count(6), 2, 3)
	require.NoError(t, d.T())
	require.NoError(t, e.stream.Launch(&device.Launch{Name: "fails", Func: func() { panic("broken kernel") }}))
	_ = d.Reshape(3, 2)
	_, err := e.Neg(d)
	assert.ErrorContains(t, err, "Transpose")
	assert.ErrorIs(t, err, device.ErrSticky)
}

func TestTensorsWithoutElements(t *testing.T) {
	e := newEngine(t, "host")
	d, err := e.New(g.Of(g.Float32), g.WithShape(0, 3))
	require.NoError(t, err)
	assert.Zero(t, e.cache.MemoryAllocated())
	assert.Equal(t, g.Shape{0, 3}, d.Shape())
	c := d.Clone().(*g.Dense)
	_, err = g.Add(d, c) // StdEng panics
	assert.ErrorIs(t, err, gorgonia.ErrShape)
	_, err = g.Sum(d)
	assert.ErrorIs(t, err, gorgonia.ErrShape)
	block, _, err := e.Block(d)
	require.NoError(t, err)
	assert.True(t, block.IsZero())
	require.NoError(t, e.Release(d))
	require.NoError(t, e.Release(c))
	require.NoError(t, e.Free(c, 0))
}

func TestBackingIsCopiedIn(t *testing.T) {
	e := newEngine(t, "host")
	backing := count(6)
	d := of(t, e, backing, 2, 3)
	backing[0] = 100
	assert.Equal(t, count(6), d.Data())
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	require.NoError(t, e.Release(d))

	// The library's New keeps the slice, so the tensor is not the engine's, but its results are.
	d = g.New(g.WithEngine(e.Engine), g.WithShape(2, 3), g.WithBacking(backing))
	assert.ErrorIs(t, e.Release(d), gorgonia.ErrForeign)
	neg, err := g.Neg(d)
	require.NoError(t, err)
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	require.NoError(t, e.Release(neg.(*g.Dense)))
	require.NoError(t, e.Adopt(d))
	require.NoError(t, e.Release(d))
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestFromMemory(t *testing.T) {
	e := newEngine(t, "host")
	mem, err := e.Alloc(24)
	require.NoError(t, err)
	assert.EqualValues(t, 24, mem.MemSize())
	require.NoError(t, e.Memset(mem, float32(1.5)))
	d, err := e.New(g.Of(g.Float32), g.WithShape(2, 3), g.FromMemory(mem.Uintptr(), mem.MemSize()))
	require.NoError(t, err)
	assert.Equal(t, []float32{1.5, 1.5, 1.5, 1.5, 1.5, 1.5}, d.Data())
	assert.Equal(t, mem.Uintptr(), d.Uintptr())
	require.NoError(t, e.Release(d))
	assert.ErrorIs(t, e.Free(mem, 24), gorgonia.ErrForeign)
	_, err = e.Accessible(mem)
	assert.ErrorIs(t, err, gorgonia.ErrForeign)

	// Memory inside and after that of a tensor.
	d = of(t, e, count(6), 6)
	inside := g.New(g.WithEngine(e.Engine), g.Of(g.Float32), g.WithShape(2), g.FromMemory(d.Uintptr()+8, 8))
	assert.ErrorContains(t, e.Release(inside), "starts inside the memory of another")
	behind := g.New(g.WithEngine(e.Engine), g.Of(g.Float32), g.WithShape(2), g.FromMemory(d.Uintptr()+24, 8))
	assert.ErrorIs(t, e.Release(behind), gorgonia.ErrForeign)
	_, _, err = e.Block(behind)
	assert.ErrorIs(t, err, gorgonia.ErrForeign)
	require.NoError(t, e.Release(d))

	// A size that does not fit the shape is an error, not a panic, and leaks nothing.
	mem, err = e.Alloc(256)
	require.NoError(t, err)
	_, err = e.New(g.Of(g.Float32), g.WithShape(2, 3), g.FromMemory(mem.Uintptr(), mem.MemSize()))
	assert.ErrorContains(t, err, "gorgonia: New: sanity check failed")
	require.NoError(t, e.Free(mem, 256))
	assert.Zero(t, e.cache.MemoryAllocated())
}

// Safe arithmetic allocates once. With a tensor to reuse, or unsafe, it does not allocate.
func TestAllocationsOfAdd(t *testing.T) {
	e := newEngine(t, "host")
	a, b, r := of(t, e, count(6), 6), of(t, e, count(6), 6), of(t, e, count(6), 6)
	allocations := func() int64 { return e.cache.Stats().Allocation.All.Allocated }
	for name, c := range map[string]struct {
		opts []g.FuncOpt
		want int64
	}{
		"safe": {nil, 1}, "reuse": {[]g.FuncOpt{g.WithReuse(r)}, 0}, "incr": {[]g.FuncOpt{g.WithIncr(r)}, 0},
		"unsafe": {[]g.FuncOpt{g.UseUnsafe()}, 0},
	} {
		before := allocations()
		_, err := g.Add(a, b, c.opts...)
		require.NoError(t, err)
		assert.Equal(t, c.want, allocations()-before, name)
	}
}
