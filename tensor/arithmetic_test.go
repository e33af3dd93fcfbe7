package tensor

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gtensor "gorgonia.org/tensor"
)

// randomShape has up to 4 dimensions of 0 to 5, mostly not 0.
func randomShape(r *rand.Rand) []int {
	shape := make([]int, r.IntN(5))
	for i := range shape {
		shape[i] = 1 + r.IntN(5)
		if r.IntN(30) == 0 {
			shape[i] = 0
		}
	}
	return shape
}

// shrunk is a shape that broadcasts to the given one.
func shrunk(r *rand.Rand, shape []int) []int {
	s := slices.Clone(shape[r.IntN(len(shape)+1):])
	for i := range s {
		if r.IntN(3) == 0 {
			s[i] = 1
		}
	}
	return s
}

func randomData(r *rand.Rand, shape []int) []float64 {
	data := make([]float64, elements(shape))
	for i := range data {
		data[i] = r.Float64()*4 + 0.25
	}
	return data
}

// indices calls f with every index of the shape.
func indices(shape []int, f func(index []int)) {
	index := make([]int, len(shape))
	for range elements(shape) {
		f(index)
		for d := len(shape) - 1; d >= 0; d-- {
			if index[d]++; index[d] < shape[d] {
				break
			}
			index[d] = 0
		}
	}
}

// at is where the element that index of a larger shape meets lies in an array of the given shape.
func at(shape, index []int) int {
	index = index[len(index)-len(shape):]
	k := 0
	for d, n := range shape {
		k *= n
		if n > 1 {
			k += index[d]
		}
	}
	return k
}

func TestBroadcastingAgainstLoops(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(1, 2))
	ops := []struct {
		name string
		run  func(context.Context, *Tensor, *Tensor) (*Tensor, error)
		want func(a, b float64) float64
	}{
		{"add", r.Add, func(a, b float64) float64 { return a + b }},
		{"sub", r.Sub, func(a, b float64) float64 { return a - b }},
		{"mul", r.Mul, func(a, b float64) float64 { return a * b }},
		{"div", r.Div, func(a, b float64) float64 { return a / b }},
	}
	for range 300 {
		out := randomShape(random)
		sa, sb := shrunk(random, out), shrunk(random, out)
		shape, err := broadcastShape("test", sa, sb)
		require.NoError(t, err)
		a, b := randomData(random, sa), randomData(random, sb)
		for _, op := range ops {
			var want []float64
			indices(shape, func(i []int) { want = append(want, op.want(a[at(sa, i)], b[at(sb, i)])) })
			y, err := op.run(r.ctx, put(r, a, atLeastScalar(sa)...), put(r, b, atLeastScalar(sb)...))
			got := get[float64](r, y, err)
			require.Equal(t, len(want), len(got))
			require.InDeltaSlice(t, append(want, 0), append(got, 0), 1e-15, "%s of %v and %v", op.name, sa, sb)
		}
	}
}

// atLeastScalar: FromSlice takes no shape for one dimension, and this for a scalar.
func atLeastScalar(shape []int) []int {
	if len(shape) == 0 {
		return []int{1}
	}
	return shape
}

func TestInPlaceEqualsOutOfPlace(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		sa := atLeastScalar(randomShape(random))
		sb := atLeastScalar(shrunk(random, sa))
		a, b := put(r, randomData(random, sa), sa...), put(r, randomData(random, sb), sb...)
		for _, op := range []struct {
			safe func(context.Context, *Tensor, *Tensor) (*Tensor, error)
			in   func(context.Context, *Tensor, *Tensor) error
		}{{r.Add, r.AddInPlace}, {r.Sub, r.SubInPlace}, {r.Mul, r.MulInPlace}} {
			y, err := op.safe(r.ctx, a, b)
			want := get[float64](r, y, err)
			require.NoError(t, op.in(r.ctx, a, b))
			require.Equal(t, want, get[float64](r, a, nil))
		}
	}
}

func TestSumsAgainstLoops(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	random := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		shape := atLeastScalar(randomShape(random))
		data := randomData(random, shape)
		x := put(r, data, shape...)
		to := shrunk(random, shape)
		want := make([]float64, elements(to))
		indices(shape, func(i []int) { want[at(to, i)] += data[at(shape, i)] })
		y, err := r.SumTo(r.ctx, x, to...)
		require.InDeltaSlice(t, append(want, 0), append(get[float64](r, y, err), 0), 1e-12, "%v to %v", shape, to)

		axis := random.IntN(len(shape))
		kept := slices.Clone(shape)
		kept[axis] = 1
		want = make([]float64, elements(kept))
		indices(shape, func(i []int) { want[at(kept, i)] += data[at(shape, i)] / float64(shape[axis]) })
		if shape[axis] == 0 {
			for i := range want {
				want[i] = math.NaN()
			}
		}
		y, err = r.Mean(r.ctx, x, axis-len(shape))
		got := get[float64](r, y, err)
		require.Equal(t, len(shape)-1, len(y.Shape()))
		for i := range want {
			if math.IsNaN(want[i]) {
				require.True(t, math.IsNaN(got[i]))
				continue
			}
			require.InDelta(t, want[i], got[i], 1e-12)
		}
	}
}

func TestBroadcastToIsUndoneBySumTo(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	x := put(r, []float32{1, 2, 3}, 3, 1)
	y, err := r.BroadcastTo(r.ctx, x, 2, 3, 4)
	require.NoError(t, err)
	z, err := r.SumTo(r.ctx, y, 3, 1)
	assert.Equal(t, []float32{8, 16, 24}, get[float32](r, z, err))
}

func TestElementwiseAgainstMath(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	data := []float64{0.1, 0.5, 1, 2, 30, 700}
	signed := []float64{-800, -30, -1, math.Copysign(0, -1), 0.5, 40, 800}
	for _, c := range []struct {
		name string
		in   []float64
		run  func(context.Context, *Tensor) (*Tensor, error)
		want func(float64) float64
	}{
		{"neg", signed, r.Neg, func(v float64) float64 { return -v }},
		{"exp", signed[1:6], r.Exp, math.Exp},
		{"log", data, r.Log, math.Log},
		{"tanh", signed, r.Tanh, math.Tanh},
		{"sigmoid", signed, r.Sigmoid, func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }},
		{"relu", signed, r.ReLU, func(v float64) float64 { return max(v, 0) }},
		{"sqrt", data, r.Sqrt, math.Sqrt},
		{"square", signed, r.Square, func(v float64) float64 { return v * v }},
		{"add", signed, func(ctx context.Context, x *Tensor) (*Tensor, error) { return r.AddScalar(ctx, x, 3) },
			func(v float64) float64 { return v + 3 }},
		{"mul", signed, func(ctx context.Context, x *Tensor) (*Tensor, error) { return r.MulScalar(ctx, x, 3) },
			func(v float64) float64 { return v * 3 }},
		{"pow", data, func(ctx context.Context, x *Tensor) (*Tensor, error) { return r.PowScalar(ctx, x, 1.5) },
			func(v float64) float64 { return math.Pow(v, 1.5) }},
	} {
		want := make([]float64, len(c.in))
		for i, v := range c.in {
			want[i] = c.want(v)
		}
		y, err := c.run(r.ctx, put(r, c.in))
		for i, v := range get[float64](r, y, err) {
			assert.InDelta(t, want[i], v, 1e-12*math.Abs(want[i])+1e-300, "%s of %v", c.name, c.in[i])
		}
	}
}

func TestLargeArraysAreSplitRight(t *testing.T) {
	r := newRig(t, 256<<20).scoped()
	const n = 300_001 // over every grain, and not a multiple of anything
	a, b := make([]float32, n), make([]float32, n)
	for i := range a {
		a[i], b[i] = float32(i), float32(2*i)
	}
	y, err := r.Add(r.ctx, put(r, a), put(r, b))
	for i, v := range get[float32](r, y, err) {
		require.Equal(t, a[i]+b[i], v)
	}
	z, err := r.Sum(r.ctx, put(r, make([]float64, n)))
	assert.Equal(t, []float64{0}, get[float64](r, z, err))
}

func TestConvert(t *testing.T) {
	r := newRig(t, 64<<20).scoped()
	y, err := r.Convert(r.ctx, put(r, []uint8{0, 128, 255}), gtensor.Float32)
	assert.Equal(t, []float32{0, 128, 255}, get[float32](r, y, err))
	y, err = r.Convert(r.ctx, put(r, []int64{-1, 1 << 40}), gtensor.Float64)
	assert.Equal(t, []float64{-1, 1 << 40}, get[float64](r, y, err))
	_, err = r.Convert(r.ctx, y, gtensor.Int32)
	assert.ErrorIs(t, err, ErrDtype)
}
