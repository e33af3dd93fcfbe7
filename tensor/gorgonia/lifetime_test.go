package gorgonia_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	g "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/tensor/gorgonia"
)

func TestLifetimeFreesAllButWhatIsKept(t *testing.T) {
	e := newEngine(t, "host")
	outside := of(t, e, count(6), 6)
	lifetime := e.NewLifetime()
	a := of(t, e, count(6), 6)
	b, err := g.Add(a, outside)
	require.NoError(t, err)
	kept, err := g.Mul(b, outside)
	require.NoError(t, err)
	require.NoError(t, lifetime.Keep(kept.(*g.Dense), outside))
	assert.EqualValues(t, 4*512, e.cache.MemoryAllocated())
	require.NoError(t, lifetime.Close())
	require.NoError(t, lifetime.Close())
	assert.EqualValues(t, 2*512, e.cache.MemoryAllocated())
	assert.Equal(t, []float32{2, 8, 18, 32, 50, 72}, kept.Data())
	assert.ErrorContains(t, lifetime.Keep(outside), "the lifetime is closed")
	require.NoError(t, e.Release(kept.(*g.Dense)))
	require.NoError(t, e.Release(outside))
	assert.Zero(t, e.cache.MemoryAllocated())
}

func TestLifetimesNest(t *testing.T) {
	e := newEngine(t, "host")
	outer := e.NewLifetime()
	a := of(t, e, count(6), 6)
	inner := e.NewLifetime()
	b := of(t, e, count(6), 6)
	c := of(t, e, count(6), 6)
	innermost := e.NewLifetime()
	require.NoError(t, innermost.Keep(a)) // is in an outer lifetime already
	of(t, e, count(6), 6)
	require.NoError(t, inner.Keep(b)) // belongs to the outer lifetime now
	assert.ErrorIs(t, inner.Keep(c, g.New(g.WithBacking(count(6)))), gorgonia.ErrForeign)
	require.NoError(t, inner.Close()) // closes the innermost too
	require.NoError(t, innermost.Close())
	assert.EqualValues(t, 2*512, e.cache.MemoryAllocated())
	assert.Equal(t, count(6), a.Data())
	assert.Equal(t, count(6), b.Data())
	require.NoError(t, outer.Keep(a))
	require.NoError(t, outer.Close())
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	require.NoError(t, e.Release(a))
}

func TestViewsKeepTheMemory(t *testing.T) {
	e := newEngine(t, "host")
	d := of(t, e, count(24), 4, 6)
	row, err := e.View(d, g.S(1))
	require.NoError(t, err)
	part, err := e.View(row, g.S(2, 5)) // a view of a view
	require.NoError(t, err)
	bare, err := d.Slice(g.S(0))
	require.NoError(t, err)
	assert.ErrorContains(t, e.Release(bare.(*g.Dense)), "a view made by Slice holds none")

	require.NoError(t, e.Release(d))
	require.NoError(t, e.Release(d))
	assert.EqualValues(t, 512, e.cache.MemoryAllocated())
	assert.Equal(t, []float32{7, 8, 9, 10, 11, 12}, row.Data())
	require.NoError(t, e.Release(row))
	require.NoError(t, e.Release(row))
	assert.Equal(t, []float32{9, 10, 11}, part.Data())
	sum, err := g.Sum(part)
	require.NoError(t, err)
	assert.Equal(t, float32(30), sum.Data())
	require.NoError(t, e.Release(sum.(*g.Dense)))
	require.NoError(t, e.Release(part))
	assert.Zero(t, e.cache.MemoryAllocated())

	_, err = e.View(g.New(g.WithBacking(count(6))), g.S(0))
	assert.ErrorIs(t, err, gorgonia.ErrForeign)
	_, err = e.View(d, g.S(0))
	assert.ErrorIs(t, err, gorgonia.ErrReleased)
	d = of(t, e, count(6), 6)
	_, err = e.View(d, g.S(9))
	assert.ErrorContains(t, err, "gorgonia: View: ")
	require.NoError(t, e.Release(d))
}

func TestViewsInLifetimes(t *testing.T) {
	e := newEngine(t, "host")
	outer := e.NewLifetime()
	d := of(t, e, count(24), 4, 6)
	inner := e.NewLifetime()
	kept, err := e.View(d, g.S(1))
	require.NoError(t, err)
	_, err = e.View(d, g.S(2))
	require.NoError(t, err)
	require.NoError(t, inner.Keep(kept))
	require.NoError(t, inner.Close())
	require.NoError(t, outer.Keep(kept))
	require.NoError(t, outer.Close())
	assert.EqualValues(t, 512, e.cache.MemoryAllocated(), "the view keeps what the lifetime freed")
	assert.Equal(t, []float32{7, 8, 9, 10, 11, 12}, kept.Data())
	require.NoError(t, e.Release(kept))
	assert.Zero(t, e.cache.MemoryAllocated())
}

// After any sequence of operations, the cache has exactly the blocks with a reference.
func TestAccountingUnderRandomUse(t *testing.T) {
	e := newEngine(t, "host")
	for seed := range uint64(30) {
		r := rand.New(rand.NewPCG(seed, 1))
		type held struct {
			d     *g.Dense
			owner int // index of the memory
		}
		var live []held
		var lifetimes []*gorgonia.Lifetime
		var depth []int // of live[i]: the number of lifetimes that were open
		refs := map[int]int{}
		bytes := map[int]int64{}
		next := 0
		drop := func(i int) {
			refs[live[i].owner]--
			live[i] = live[len(live)-1]
			depth[i] = depth[len(depth)-1]
			live, depth = live[:len(live)-1], depth[:len(depth)-1]
		}
		check := func() {
			var want int64
			for o, n := range refs {
				if n > 0 {
					want += bytes[o]
				}
			}
			require.Equal(t, want, e.cache.MemoryAllocated(), "seed %d", seed)
		}
		for range 200 {
			switch k := r.IntN(10); {
			case k < 4 || len(live) == 0:
				n := 1 + r.IntN(2000)
				d := of(t, e, make([]float32, n), n)
				live, depth = append(live, held{d, next}), append(depth, len(lifetimes))
				refs[next], bytes[next] = 1, rounded(d)
				next++
			case k < 6:
				from := live[r.IntN(len(live))]
				n := from.d.Size()
				if n == 1 {
					continue
				}
				v, err := e.View(from.d, g.S(r.IntN(n-1), n))
				require.NoError(t, err)
				live, depth = append(live, held{v, from.owner}), append(depth, len(lifetimes))
				refs[from.owner]++
			case k < 8:
				i := r.IntN(len(live))
				require.NoError(t, e.Release(live[i].d))
				require.NoError(t, e.Release(live[i].d))
				drop(i)
			case k == 8:
				lifetimes = append(lifetimes, e.NewLifetime())
			case len(lifetimes) > 0:
				last := len(lifetimes) - 1
				if i := r.IntN(len(live)); depth[i] == last+1 {
					require.NoError(t, lifetimes[last].Keep(live[i].d))
					depth[i]--
				}
				require.NoError(t, lifetimes[last].Close())
				lifetimes = lifetimes[:last]
				for i := len(live) - 1; i >= 0; i-- {
					if depth[i] > last {
						drop(i)
					}
				}
			}
			check()
		}
		for len(live) > 0 {
			require.NoError(t, e.Release(live[0].d))
			drop(0)
			check()
		}
		for _, s := range lifetimes {
			require.NoError(t, s.Close())
		}
	}
	assert.NoError(t, e.Close(), "nothing is left")
}

// The lifetime frees temporaries that only the library references.
func TestLifetimeFreesTheLibrarysTemporaries(t *testing.T) {
	e := newEngine(t, "host")
	lifetime := e.NewLifetime()
	a, b, c := of(t, e, count(24), 2, 3, 4), of(t, e, count(24), 4, 3, 2), of(t, e, count(4), 2, 2)
	x, y := of(t, e, count(6), 2, 3), of(t, e, count(6), 3, 2)
	_, err := a.TensorMul(b, []int{1, 2}, []int{1, 0})
	require.NoError(t, err)
	_, err = x.MatMul(y, g.WithIncr(c))
	require.NoError(t, err)
	_, err = a.Norm(g.UnorderedNorm())
	require.NoError(t, err)
	assert.Greater(t, e.cache.MemoryAllocated(), int64(6*512))
	require.NoError(t, lifetime.Close())
	assert.Zero(t, e.cache.MemoryAllocated())
}

// The engine leaves no temporaries of its own operations, including those that StdEng leaks.
func TestNoTemporariesAreLost(t *testing.T) {
	for name, f := range map[string]func(e rig, in *given) (g.Tensor, error){
		"unary incr": func(e rig, in *given) (g.Tensor, error) { return g.Square(in.a, g.WithIncr(in.b)) },
		"clamp incr": func(e rig, in *given) (g.Tensor, error) {
			return g.Clamp(in.a, float32(1), float32(2), g.WithIncr(in.b))
		},
		"unary reuse":    func(e rig, in *given) (g.Tensor, error) { return g.Square(in.a, g.WithReuse(in.b)) },
		"unary unsafe":   func(e rig, in *given) (g.Tensor, error) { return g.Square(in.a, g.UseUnsafe()) },
		"softmax reuse":  func(e rig, in *given) (g.Tensor, error) { return g.SoftMax(in.a, 1, g.WithReuse(in.b)) },
		"softmax unsafe": func(e rig, in *given) (g.Tensor, error) { return g.SoftMax(in.a, 1, g.UseUnsafe()) },
		"indices reuse": func(e rig, in *given) (g.Tensor, error) {
			return g.ByIndices(in.a, in.indices, 0, g.WithReuse(in.b))
		},
		"indices gradient reuse": func(e rig, in *given) (g.Tensor, error) {
			return g.ByIndicesB(in.a, in.b, in.indices, 0, g.WithReuse(in.b))
		},
		"compare reuse": func(e rig, in *given) (g.Tensor, error) {
			return g.Gt(in.a, in.b, g.WithReuse(in.b), g.AsSameType())
		},
		"compare unsafe": func(e rig, in *given) (g.Tensor, error) { return g.Gt(in.a, in.b, g.UseUnsafe()) },
		"repeat reuse": func(e rig, in *given) (g.Tensor, error) {
			if err := in.b.Reshape(24); err != nil {
				return nil, err
			}
			return g.RepeatReuse(in.v, in.b, 0, 4)
		},
		"apply incr": func(e rig, in *given) (g.Tensor, error) {
			return in.a.Apply(func(x float32) float32 { return x + 1 }, g.WithIncr(in.b))
		},
		"matmul reuse": func(e rig, in *given) (g.Tensor, error) {
			return g.MatMul(in.a, in.c, g.WithReuse(in.square(e)))
		},
		"dot incr": func(e rig, in *given) (g.Tensor, error) { return g.Dot(in.a, in.c, g.WithIncr(in.square(e))) },
		"dot incr and reuse": func(e rig, in *given) (g.Tensor, error) {
			return g.Dot(in.a, in.c, g.WithReuse(in.square(e)), g.WithIncr(in.square(e)))
		},
		"fma": func(e rig, in *given) (g.Tensor, error) { return g.FMA(in.a, float32(3), in.b) },
	} {
		t.Run(name, func(t *testing.T) {
			e := newEngine(t, "host")
			in := given{operands: layouts["compact"](t, e, plainOperands(rand.New(rand.NewPCG(1, 1))))}
			before := e.cache.MemoryAllocated()
			r, err := f(e, &in)
			require.NoError(t, err)
			assert.Same(t, e.Engine, r.Engine())
			assert.Equal(t, before+int64(len(in.squares))*512, e.cache.MemoryAllocated())
		})
	}
}

// given holds operands, and the tensors that a test allocated for results.
type given struct {
	operands
	squares []*g.Dense
}

func (in *given) square(e rig) *g.Dense {
	d := g.New(g.WithEngine(e.Engine), g.Of(g.Float32), g.WithShape(4, 4))
	in.squares = append(in.squares, d)
	return d
}

// Every operation without enough memory returns an error, and leaks nothing.
func TestOutOfMemory(t *testing.T) {
	engines := map[string]rig{}
	for layout := range layouts {
		engines[layout] = newEngine(t, "host?capacity=2MiB")
	}
	for _, op := range operations {
		t.Run(op.name, func(t *testing.T) {
			for layout, make := range layouts {
				e := engines[layout]
				life := e.NewLifetime()
				in := make(t, e, plainOperands(rand.New(rand.NewPCG(1, 1))))
				for size := int64(1 << 20); size >= 512; {
					if _, err := e.Alloc(size); err != nil {
						size /= 2
					}
				}
				before := e.cache.MemoryAllocated()
				err := e.Do(func() error {
					_, err := op.do(in)
					return err
				})
				var alloc *gorgonia.MemoryError
				require.ErrorAs(t, err, &alloc, layout)
				assert.Equal(t, before, e.cache.MemoryAllocated(), layout)
				require.NoError(t, life.Close())
			}
		})
	}
}

func TestDoLetsOtherPanicsPass(t *testing.T) {
	e := newEngine(t, "host")
	assert.PanicsWithValue(t, "mine", func() { _ = e.Do(func() error { panic("mine") }) })
	boom := errors.New("boom")
	assert.ErrorIs(t, e.Do(func() error { return boom }), boom)
	assert.NoError(t, e.Do(func() error { return nil }))
}
