package tensor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
)

// TestDonatedMemoryHasTheResult: the result of every elementwise operation in donated memory is
// bit-identical to the result in new memory, for random shapes and every floating-point dtype.
func TestDonatedMemoryHasTheResult(t *testing.T) {
	r := newRig(t, 64<<20)
	random := rand.New(rand.NewPCG(1, 24))
	zips := map[string]func(ctx context.Context, a, b *Tensor) (*Tensor, error){"add": r.Add, "sub": r.Sub, "mul": r.Mul, "div": r.Div, "bias": r.AddBias}
	maps := map[string]func(ctx context.Context, x *Tensor) (*Tensor, error){
		"relu": r.ReLU, "exp": r.Exp, "tanh": r.Tanh, "sigmoid": r.Sigmoid, "square": r.Square, "gelu": r.GELU, "silu": r.SiLU,
		"scalar": func(ctx context.Context, x *Tensor) (*Tensor, error) { return r.AddScalar(ctx, x, 0.5) },
		"leaky":  func(ctx context.Context, x *Tensor) (*Tensor, error) { return r.LeakyReLU(ctx, x, 0.5) },
		"dropout": func(ctx context.Context, x *Tensor) (*Tensor, error) {
			return r.Dropout(ctx, nil, x, 0.5, Random{Seed: 3, Stream: 4})
		},
	}
	tensorOf := func(dtype Dtype, data []float64, shape ...int) *Tensor {
		x, err := r.Zeros(r.ctx, dtype, shape...)
		require.NoError(t, err)
		if len(data) > 0 {
			wide := put(r, data, shape...)
			require.NoError(t, x.Release())
			x, err = r.Convert(r.ctx, wide, dtype)
			require.NoError(t, errors.Join(err, wide.Release()))
		}
		return x
	}
	contents := func(x *Tensor, err error) string {
		require.NoError(t, err)
		wide, err := r.Convert(r.ctx, x, Float64)
		require.NoError(t, err)
		bits := bytesOf(get[float64](r, wide, nil))
		require.NoError(t, wide.Release())
		return fmt.Sprint(x.Shape()) + string(bits)
	}
	// compare donates the operands that it is called with, and reports which of them shares its
	// memory with the result.
	compare := func(what string, donated []bool, xs []*Tensor, f func() (*Tensor, error)) (taken int) {
		y, err := f()
		want := contents(y, err)
		require.NoError(t, y.Release())
		versions := make([]uint64, len(xs))
		for i, x := range xs {
			versions[i] = x.Version()
			if donated[i] {
				Donate(x)
			}
		}
		y, err = f()
		require.True(t, want == contents(y, err), what)
		taken = -1
		for i, x := range xs {
			if MemoryOf(x) == MemoryOf(y) {
				taken = i
			}
			require.Equal(t, taken == i, x.Version() != versions[i], what)
			require.False(t, x.donated.Load(), what)
			require.NoError(t, x.Release())
		}
		require.False(t, y.Released(), what)
		require.NoError(t, y.Release())
		return taken
	}
	numbers := func(n int) []float64 {
		data := make([]float64, n)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		return data
	}
	for range rounds(60, 20) {
		dtype := []Dtype{Float32, Float64, BFloat16}[random.IntN(3)]
		rows, columns := random.IntN(9), 1+random.IntN(70)
		make2 := func(rows, columns int) *Tensor { return tensorOf(dtype, numbers(rows*columns), rows, columns) }
		for name, f := range maps {
			x := make2(rows, columns)
			require.Equal(t, 0, compare(name, []bool{true}, []*Tensor{x}, func() (*Tensor, error) { return f(r.ctx, x) }))
			x = make2(rows, columns)
			require.Equal(t, -1, compare(name, []bool{false}, []*Tensor{x}, func() (*Tensor, error) { return f(r.ctx, x) }))
		}
		for name, f := range zips {
			row := tensorOf(dtype, numbers(columns), columns)
			for _, c := range []struct {
				a, b    *Tensor
				donated []bool
				taken   int
			}{
				{make2(rows, columns), make2(rows, columns), []bool{true, true}, 0},
				{make2(rows, columns), make2(rows, columns), []bool{false, true}, 1},
				{make2(rows, columns), row, []bool{true, name != "bias"}, 0},
				{tensorOf(dtype, numbers(columns), columns), make2(rows, columns), []bool{true, true}, 1},
			} {
				if name == "bias" && c.b != row {
					require.NoError(t, errors.Join(c.a.Release(), c.b.Release()))
					continue
				}
				require.Equal(t, c.taken, compare(name, c.donated, []*Tensor{c.a, c.b}, func() (*Tensor, error) { return f(r.ctx, c.a, c.b) }), name)
			}
		}
		both := make2(rows, columns)
		require.Equal(t, 0, compare("itself", []bool{true}, []*Tensor{both}, func() (*Tensor, error) { return r.Div(r.ctx, both, both) }))
	}
}

// TestDonationsThatAreNotTaken: memory that is shared, borrowed, or older than a capture stays
// unchanged, and a donation is for one operation.
func TestDonationsThatAreNotTaken(t *testing.T) {
	r := newRig(t, 64<<20)
	r.scoped()
	apart := func(x *Tensor) {
		t.Helper()
		Donate(x)
		y, err := r.AddScalar(r.ctx, x, 1)
		require.NoError(t, err)
		require.NotEqual(t, MemoryOf(x), MemoryOf(y))
		require.Equal(t, []float32{1, 2}, get[float32](r, x, nil))
	}
	x := put(r, []float32{1, 2})
	other, err := r.Share(r.ctx, x)
	require.NoError(t, err)
	apart(x)
	require.NoError(t, other.Release())
	borrowed, err := r.FromBlock(x.Block(), Float32, 2)
	require.NoError(t, err)
	apart(borrowed)
	require.NoError(t, borrowed.Release())

	Donate(x)
	_, err = r.Add(r.ctx, x, nil)
	require.ErrorIs(t, err, ErrInvalid)
	require.Equal(t, []float32{1, 2}, get[float32](r, x, nil), "an operation that was refused")
	y, err := r.AddScalar(r.ctx, x, 1)
	require.NoError(t, err)
	require.Equal(t, MemoryOf(x), MemoryOf(y))
	z, err := r.AddScalar(r.ctx, x, 1)
	require.NoError(t, err)
	require.NotEqual(t, MemoryOf(x), MemoryOf(z), "the next operation")
	require.Equal(t, []float32{3, 4}, get[float32](r, z, nil))
	var none *Tensor
	Donate(none)

	// A graph that overwrote memory that it has not made would compute a different result at each
	// replay.
	before := put(r, []float32{1, 2})
	out := put(r, []float32{0, 0})
	g := r.capture(r.ctx, func(ctx context.Context) error {
		Donate(before)
		a, err := r.AddScalar(ctx, before, 1)
		if err != nil {
			return err
		}
		require.NotEqual(t, MemoryOf(before), MemoryOf(a))
		Donate(a)
		b, err := r.MulScalar(ctx, a, 2)
		if err != nil {
			return err
		}
		require.Equal(t, MemoryOf(a), MemoryOf(b), "what the capture has made")
		return errors.Join(r.CopyInPlace(ctx, out, b), a.Release(), b.Release())
	})
	for range 3 {
		require.NoError(t, g.Replay(r.ctx))
		assert.Equal(t, []float32{4, 6}, get[float32](r, out, nil))
	}
	assert.Equal(t, []float32{1, 2}, get[float32](r, before, nil))
}

// TestDonatedMemoryKeepsItsLabel: the label is that of the allocation.
func TestDonatedMemoryKeepsItsLabel(t *testing.T) {
	r := newRig(t, 64<<20)
	r.scoped()
	x, err := r.Zeros(memcache.WithModule(r.ctx, "conv"), Float32, 2)
	require.NoError(t, err)
	Donate(x)
	y, err := r.ReLU(memcache.WithModule(r.ctx, "relu"), x)
	require.NoError(t, err)
	assert.Equal(t, "conv", y.Label().Module)
}
