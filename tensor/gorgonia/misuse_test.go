package gorgonia_test

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

func TestReleasedTensors(t *testing.T) {
	e := newEngine(t, "host")
	a, b := of(t, e, count(6), 6), of(t, e, count(6), 6)
	require.NoError(t, e.Release(a))
	require.NoError(t, e.Release(a))
	require.NoError(t, e.Release(nil))
	_, err := g.Add(b, a)
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	_, err = g.Add(b, b, g.WithReuse(a))
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	assert.Panics(t, func() { a.Data() })
	copied := b.ShallowClone()
	view, err := e.View(b, g.S(1, 3))
	require.NoError(t, err)
	require.NoError(t, e.Release(b))
	assert.ErrorContains(t, e.Release(copied), "only views hold its memory")
	require.NoError(t, e.Release(view))
	assert.ErrorIs(t, e.Release(copied), gorgonia.ErrForeign)
	b = of(t, e, count(6), 6)

	other := newEngine(t, "host")
	assert.ErrorIs(t, other.Release(b), gorgonia.ErrForeign)
	assert.ErrorIs(t, e.Release(g.New(g.WithBacking(count(6)))), gorgonia.ErrForeign)
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
}

// A failed operation leaves no memory.
func TestFailedOperations(t *testing.T) {
	e := newEngine(t, "host")
	a := of(t, e, []int{1, 2, 3}, 3)
	before := e.cache.MemoryAllocated()
	_, err := g.Pow(a, a)
	assert.ErrorContains(t, err, "gorgonia: Pow: ")
	_, err = g.Sqrt(a)
	assert.Error(t, err)
	_, err = g.SoftMax(a, 0)
	assert.ErrorContains(t, err, "gorgonia: SoftMax: type int not supported")
	_, err = g.Repeat(a, 0, 1, 2)
	assert.Error(t, err)
	_, err = g.Add(a, of(t, e, count(6), 6))
	assert.ErrorContains(t, err, "gorgonia: Add: ")
	assert.Equal(t, before+512, e.cache.MemoryAllocated())
}

// A *Dense that was returned to the library's pool belongs to another caller.
func TestRecycledHandles(t *testing.T) {
	e := newEngine(t, "host")
	for range 50 {
		d := of(t, e, count(6), 6)
		require.NoError(t, e.Release(d))
		g.ReturnTensor(d)
		next := of(t, e, count(6), 6)
		assert.Equal(t, count(6), next.Data())
		require.NoError(t, e.Release(next))
	}
	assert.Zero(t, e.cache.MemoryAllocated())

	// Returned without a release: the memory stays until the lifetime closes.
	lifetime := e.NewLifetime()
	g.ReturnTensor(of(t, e, count(6), 6))
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	require.NoError(t, lifetime.Close())
	assert.Zero(t, e.cache.MemoryAllocated())
}

// The device's memory is Go memory, and survives the collection of the tensors that point to it.
func TestGarbageCollectionLeavesTheMemoryAlone(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, count(1000), 1000)
	for range 20 {
		runtime.GC()
		x, err := g.Square(d)
		require.NoError(t, err)
		assert.Equal(t, float32(1000*1000), x.(*g.Dense).Float32s()[999])
		require.NoError(t, e.Release(x.(*g.Dense)))
	}
	assert.Equal(t, count(1000), d.Data())
}

func TestTypesWithPointersAreRefused(t *testing.T) {
	e := newEngine(t, "host")
	_, err := e.New(g.WithBacking([]string{"a"}))
	assert.ErrorContains(t, err, "type string may hold Go pointers")
	assert.ErrorContains(t, e.Adopt(g.New(g.WithBacking([]string{"a"}))), "may hold Go pointers")
	_, err = e.New(g.WithShape(2))
	assert.ErrorContains(t, err, "the type is missing")
	_, err = e.New(g.Of(g.Float32), g.WithShape(-1, 3))
	assert.ErrorContains(t, err, "gorgonia: New: negative dimension")
	_, err = e.Alloc(-8)
	assert.ErrorContains(t, err, "gorgonia: Alloc of -8 bytes: the size is negative")
	_, err = e.New(g.WithBacking(5))
	assert.ErrorContains(t, err, "Expected a slice")
	_, err = e.New(g.WithShape(2, 2), g.WithBacking(count(6)))
	assert.ErrorContains(t, err, "sanity check failed")
	assert.Zero(t, e.cache.MemoryAllocated())
}

// For an inner product StdEng ignores WithReuse and WithIncr. For products of more dimensions it
// ignores strides.
func TestDotIntoATensor(t *testing.T) {
	e := newEngine(t, "host")
	a, b := of(t, e, []float32{3, 4}, 2, 1), of(t, e, []float32{2, 1.5}, 1, 2)
	square, number := of(t, e, count(4), 2, 2), of(t, e, []float32{100}, 1)
	r, err := g.Dot(a, b)
	require.NoError(t, err)
	assert.Equal(t, float32(12), r.Data(), "vectors of any shape have an inner product")
	for _, opt := range []g.FuncOpt{g.WithReuse(square), g.WithIncr(square)} {
		r, err = g.Dot(a, b, opt)
		assert.ErrorIs(t, err, gorgonia.ErrShape)
		assert.Nil(t, r)
		assert.Equal(t, count(4), square.Data())
	}
	r, err = g.Dot(a, b, g.WithIncr(number))
	require.NoError(t, err)
	assert.Same(t, number, r)
	assert.Equal(t, []float64{112}, values(t, number))
	r, err = g.Dot(a, b, g.WithReuse(number))
	require.NoError(t, err)
	assert.Same(t, number, r)
	assert.Equal(t, []float64{12}, values(t, number))
	_, err = g.Dot(a, b, g.WithReuse(of(t, e, []float64{1}, 1)))
	assert.Error(t, err, "of another dtype")
}

func TestDotOfStridedViews(t *testing.T) {
	e := newEngine(t, "host")
	plain := g.New(g.WithShape(2, 3, 2), g.WithBacking(count(12)))
	m := g.New(g.WithShape(2, 2), g.WithBacking(count(4)))
	want, err := g.Dot(plain, m)
	require.NoError(t, err)
	got, err := g.Dot(of(t, e, count(12), 2, 3, 2), transposed(t, e, m))
	require.NoError(t, err)
	assert.Equal(t, values(t, want), values(t, got))
	got, err = g.Dot(of(t, e, count(12), 2, 3, 2), window(t, e, m, 1, 1))
	require.NoError(t, err)
	assert.Equal(t, values(t, want), values(t, got))

	row := of(t, e, count(2), 1, 2)
	turned := transposed(t, e, m)
	got, err = g.Dot(row, turned)
	require.NoError(t, err)
	assert.Equal(t, []float64{7, 10}, values(t, got))
	assert.Equal(t, values(t, m), values(t, turned), "the operand is still transposed")
}

func TestPanicsOfTheLibraryAreErrors(t *testing.T) {
	e := newEngine(t, "host")
	view := window(t, e, g.New(g.WithShape(2, 3), g.WithBacking(count(6))), 1, 1)
	for _, opt := range []g.FuncOpt{g.WithReuse(of(t, e, count(6), 2, 3)), g.WithIncr(of(t, e, count(6), 2, 3))} {
		_, err := g.Gt(float32(3), view, opt)
		assert.ErrorIs(t, err, gorgonia.ErrDtype)
		_, err = g.Lte(view, view, opt)
		assert.ErrorIs(t, err, gorgonia.ErrDtype)
	}
	bools, err := e.New(g.Of(g.Bool), g.WithShape(2, 3))
	require.NoError(t, err)
	_, err = g.Gt(float32(3), view, g.WithReuse(bools))
	require.NoError(t, err)
	assert.Equal(t, []float64{1, 1, 0, 0, 0, 0}, values(t, bools))

	ints := of(t, e, []int{1, 0, 3}, 3)
	for name, f := range map[string]func() (g.Tensor, error){
		"Div": func() (g.Tensor, error) { return g.Div(ints, ints) }, "Mod": func() (g.Tensor, error) { return g.Mod(ints, ints) },
		"Inv": func() (g.Tensor, error) { return g.Inv(ints) }, "Div by 0": func() (g.Tensor, error) { return g.Div(ints, 0) },
		"Mod by 0": func() (g.Tensor, error) { return g.Mod(ints, 0) }, "7 / x": func() (g.Tensor, error) { return g.Div(7, ints) },
		"unsafe maximum": func() (g.Tensor, error) { return g.MaxBetween(ints, ints, g.UseUnsafe()) },
	} {
		_, err := f()
		assert.ErrorIs(t, err, gorgonia.ErrInvalid, name)
	}
	assert.Equal(t, []int{1, 0, 3}, ints.Data())
	assert.Panics(t, func() { _, _ = ints.Apply(func(int) int { panic("the user's own") }) })
	assert.Panics(t, func() { _, _ = ints.Reduce(func(a, b int) int { panic("the user's own") }, 0, 0) })
}
