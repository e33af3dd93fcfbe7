package gorgonia_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

func TestEngineMemory(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, make([]float32, 4), 4)
	mem, err := e.Alloc(16)
	require.NoError(t, err)
	require.NoError(t, e.Memset(mem, float32(2)))
	require.NoError(t, e.Memcpy(d, mem))
	assert.Equal(t, []float32{2, 2, 2, 2}, d.Data())
	require.NoError(t, e.Memset(mem, uint8(255)))
	e.Memclr(mem)
	require.NoError(t, e.Memcpy(d, mem))
	assert.Equal(t, make([]float32, 4), d.Data())
	require.NoError(t, e.Memset(d, float32(3)))
	require.NoError(t, e.Memcpy(mem, d))
	e.Memclr(d)
	assert.Equal(t, make([]float32, 4), d.Data())
	require.NoError(t, e.Memcpy(d, mem))
	assert.Equal(t, []float32{3, 3, 3, 3}, d.Data())
	same, err := e.Accessible(mem)
	require.NoError(t, err)
	assert.Equal(t, mem, same)

	assert.ErrorContains(t, e.Memset(mem, "text"), "Memset to a string: memory is set to a number or a bool")
	assert.ErrorContains(t, e.Memset(mem, nil), "memory is set to a number or a bool")
	odd, err := e.Alloc(3)
	require.NoError(t, err)
	assert.ErrorContains(t, e.Memset(odd, int16(1)), "Memset of 3 bytes to a int16 of 2 bytes")
	assert.ErrorContains(t, e.Memcpy(d, of(t, e, make([]int32, 4), 4)), "the types must be the same")
	none, err := e.Alloc(0)
	require.NoError(t, err)
	require.NoError(t, e.Memset(none, 1))
	e.Memclr(none)
	require.NoError(t, e.Free(none, 0))
	require.NoError(t, e.Free(mem, 16))
	assert.ErrorIs(t, e.Free(mem, 16), gorgonia.ErrForeign)
	require.NoError(t, e.Free(odd, 3))
}

func TestOperationsThatGiveNumbersOrSeveralTensors(t *testing.T) {
	e := newEngine(t, "host")
	m := of(t, e, []float64{3, 1, 1, 3, 2, 1}, 3, 2)
	v, w := of(t, e, []float64{1, 2, 3}, 3), of(t, e, []float64{4, 5, 6}, 3)
	before := e.cache.MemoryAllocated()

	inner, err := v.Inner(w)
	require.NoError(t, err)
	assert.Equal(t, 32.0, inner)
	trace, err := m.Trace()
	require.NoError(t, err)
	assert.Equal(t, 6.0, trace)
	assert.Equal(t, before, e.cache.MemoryAllocated())

	s, u, vt, err := m.SVD(true, false)
	require.NoError(t, err)
	assert.Equal(t, before+3*512, e.cache.MemoryAllocated())
	for _, d := range []*g.Dense{s, u, vt} {
		assert.Same(t, e.Engine, d.Engine())
		require.NoError(t, e.Release(d))
	}
	s, u, vt, err = m.SVD(false, false)
	require.NoError(t, err)
	assert.Nil(t, u)
	assert.Nil(t, vt)
	require.NoError(t, e.Release(s))
	assert.Equal(t, before, e.cache.MemoryAllocated())
}

func TestDotOfMoreDimensions(t *testing.T) {
	e := newEngine(t, "host")
	a, b := of(t, e, count(24), 2, 3, 4), of(t, e, count(24), 4, 6)
	want, err := g.Dot(g.New(g.WithShape(2, 3, 4), g.WithBacking(count(24))), g.New(g.WithShape(4, 6), g.WithBacking(count(24))))
	require.NoError(t, err)
	before := e.cache.MemoryAllocated()
	got, err := g.Dot(a, b)
	require.NoError(t, err)
	same(t, want, got)
	assert.Same(t, e.Engine, got.Engine())
	assert.Equal(t, before+rounded(got.(*g.Dense)), e.cache.MemoryAllocated())
	sum := of(t, e, make([]float32, 36), 2, 3, 6)
	before = e.cache.MemoryAllocated()
	_, err = g.Dot(a, b, g.WithIncr(sum))
	require.NoError(t, err)
	same(t, want, sum)
	assert.Equal(t, before, e.cache.MemoryAllocated())
}

// Operations don't change their operands.
func TestOperandsKeepTheirShapesAndMasks(t *testing.T) {
	e := newEngine(t, "host")
	a, b := of(t, e, count(3), 1, 3), of(t, e, count(3), 1, 3)
	b.ResetMask(true)
	joined, err := g.Concat(0, a, b)
	require.NoError(t, err)
	assert.Equal(t, []float32{1, 2, 3, 1, 2, 3}, joined.Data())
	assert.Equal(t, g.Shape{1, 3}, a.Shape())
	assert.Equal(t, g.Shape{1, 3}, b.Shape())
	assert.True(t, b.IsMasked())

	m := transposed(t, e, g.New(g.WithShape(3, 2), g.WithBacking(count(6))))
	_, err = g.Dot(of(t, e, count(3), 3), m)
	require.NoError(t, err)
	assert.Equal(t, g.Shape{3, 2}, m.Shape())
	same(t, g.New(g.WithShape(3, 2), g.WithBacking(count(6))), m)
}

// Operations in place write the operand's own memory, with any strides.
func TestUnsafeOperationsAreInPlace(t *testing.T) {
	e := newEngine(t, "host")
	m := transposed(t, e, g.New(g.WithShape(3, 2), g.WithBacking(count(6))))
	for name, f := range map[string]func() (g.Tensor, error){
		"number on the left":  func() (g.Tensor, error) { return g.Add(float32(1), m, g.UseUnsafe()) },
		"number on the right": func() (g.Tensor, error) { return g.Sub(m, float32(1), g.UseUnsafe()) },
		"unary":               func() (g.Tensor, error) { return g.Neg(m, g.UseUnsafe()) },
	} {
		r, err := f()
		require.NoError(t, err, name)
		assert.Same(t, m, r, name)
	}
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	assert.Equal(t, g.Shape{3, 2}, m.Shape())
}

// A view that an operation returns keeps its memory, like the views of Engine.View.
func TestViewsAsResults(t *testing.T) {
	e := newEngine(t, "host")
	a := of(t, e, []float32{5}, 1, 1)
	i := of(t, e, []int{0}, 1)
	v, err := g.ByIndices(a, i, 0)
	require.NoError(t, err)
	require.NoError(t, e.Release(a))
	require.NoError(t, e.Release(i))
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	require.NoError(t, e.Release(v.(*g.Dense)))
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestColumnMajorTensors(t *testing.T) {
	e := newEngine(t, "host")
	d, err := e.New(g.WithShape(2, 3), g.AsFortran(count(6)))
	require.NoError(t, err)
	plain := g.New(g.WithShape(2, 3), g.AsFortran(count(6)))
	for name, f := range map[string]func(d *g.Dense) (g.Tensor, error){
		"Neg":  func(d *g.Dense) (g.Tensor, error) { return g.Neg(d) },
		"Add":  func(d *g.Dense) (g.Tensor, error) { return g.Add(d, d) },
		"Gt":   func(d *g.Dense) (g.Tensor, error) { return g.Gt(d, d) },
		"Sum":  func(d *g.Dense) (g.Tensor, error) { return g.Sum(d) },
		"Copy": func(d *g.Dense) (g.Tensor, error) { return d.Clone().(*g.Dense), nil },
	} {
		want, err := f(plain)
		require.NoError(t, err)
		got, err := f(d)
		require.NoError(t, err)
		assert.Equal(t, fmt.Sprint(want), fmt.Sprint(got), name)
		assert.Same(t, e.Engine, got.Engine())
		require.NoError(t, e.Release(got.(*g.Dense)))
	}
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
}

func TestEngineConcurrentSafe(t *testing.T) {
	e := newEngine(t, "host")
	shared, vector := of(t, e, count(64), 8, 8), of(t, e, count(8), 8)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			stream, err := e.dev.NewStream(device.StreamOptions{})
			if !assert.NoError(t, err) {
				return
			}
			defer stream.Close()
			own, err := gorgonia.NewEngine(e.cache, stream)
			if !assert.NoError(t, err) {
				return
			}
			defer func() { assert.NoError(t, own.Close()) }()
			for range 20 {
				lifetime := own.NewLifetime()
				m, err := g.MatMul(shared, shared)
				if !assert.NoError(t, err) {
					return
				}
				v, err := e.View(shared, g.S(3))
				assert.NoError(t, err)
				x, err := own.New(g.WithShape(8, 8), g.WithBacking(count(64)))
				assert.NoError(t, err)
				_, err = g.Add(x, m)
				assert.NoError(t, err)
				d, err := own.Dot(vector, shared) // StdEng transposes the shared matrix temporarily
				assert.NoError(t, err)
				assert.NoError(t, e.Release(d.(*g.Dense)))
				assert.NoError(t, e.Release(m.(*g.Dense)))
				assert.NoError(t, e.Release(v))
				assert.NoError(t, lifetime.Close())
			}
		})
	}
	wg.Wait()
	require.NoError(t, e.Release(shared))
	require.NoError(t, e.Release(vector))
	assert.Zero(t, e.cache.MemoryAllocated())
}

func BenchmarkEngineNew(b *testing.B) {
	for _, live := range []int{0, 10_000} {
		b.Run(fmt.Sprint("live=", live), func(b *testing.B) {
			e := newEngine(b, "host")
			for range live {
				of(b, e, count(64), 64)
			}
			b.ReportAllocs()
			for b.Loop() {
				d := g.New(g.WithEngine(e.Engine), g.Of(g.Float32), g.WithShape(8, 8))
				_ = e.Release(d)
			}
		})
	}
	b.Run("StdEng", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			g.New(g.Of(g.Float32), g.WithShape(8, 8))
		}
	})
}

func BenchmarkEngineAdd(b *testing.B) {
	e := newEngine(b, "host")
	x, y := of(b, e, count(64), 64), of(b, e, count(64), 64)
	p, q := g.New(g.WithBacking(count(64))), g.New(g.WithBacking(count(64)))
	for name, c := range map[string][2]*g.Dense{"engine": {x, y}, "StdEng": {p, q}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = g.Add(c[0], c[1], g.WithReuse(c[0]))
			}
		})
	}
}
