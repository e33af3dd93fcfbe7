package autograd_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestGradientsOfChoices: the gradients of a choice by index are sums over the choices, for both
// dtypes of index.
func TestGradientsOfChoices(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	wide := tapetest.Upload(b, []int64{2, 0, 2, 2}, 2, 2)
	narrow := tapetest.Upload(b, []int32{2, 0, 2, 2}, 2, 2)
	flat := tapetest.Upload(b, []int32{2, 0, 2}, 3)
	for _, index := range []*tensor.Tensor{wide, narrow} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		w := tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 3, 2))
		i := tape.Input(index)
		y := tape.Embedding(i, w, tensor.EmbeddingConfig{}).Keep()
		scale := tape.Input(tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6, 7, 8}, 2, 2, 2))
		_, err := tape.Backward(tape.Sum(tape.Mul(y, scale)))
		require.NoError(t, err)
		assert.Equal(t, []float64{5, 6, 1, 2, 5, 6, 5, 6}, tapetest.Read[float64](b, y.Value()))
		assert.Equal(t, []float64{3, 4, 0, 0, 13, 16}, tapetest.Read[float64](b, w.Grad()))
		require.NoError(t, tape.Close())

		tape = autograd.NewTape(b.Ctx, b.RT)
		x := tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 2, 3))
		y = tape.Gather(x, -1, tape.Input(index)).Keep()
		scale = tape.Input(tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2))
		_, err = tape.Backward(tape.Sum(tape.Mul(y, scale)))
		require.NoError(t, err)
		assert.Equal(t, []float64{3, 1, 6, 6}, tapetest.Read[float64](b, y.Value()))
		assert.Equal(t, []float64{2, 0, 1, 0, 0, 7}, tapetest.Read[float64](b, x.Grad()))
		require.NoError(t, tape.Close())
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	x := tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 2, 3))
	y := tape.IndexSelect(x, 1, tape.Input(flat)).Keep()
	_, err := tape.Backward(tape.Sum(tape.Square(y)))
	require.NoError(t, err)
	assert.Equal(t, []float64{3, 1, 3, 6, 4, 6}, tapetest.Read[float64](b, y.Value()))
	assert.Equal(t, []float64{2, 0, 12, 8, 0, 24}, tapetest.Read[float64](b, x.Grad()))
	require.NoError(t, tape.Close())
}

// TestEmbeddingLayer trains all rows except the padding row.
func TestEmbeddingLayer(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	defer in.Close()
	e := in.Embedding(4, 2, nn.PaddingIndex(1))
	require.NoError(t, in.Err())
	tape := autograd.NewTape(b.Ctx, b.RT)
	y := e.Forward(tape, autograd.Upload(tape, []int32{1, 3, 1}))
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	assert.Equal(t, []float64{0, 0, 0, 0, 0, 0, 1, 1}, tapetest.Read[float64](b, e.Weight.Grad()))
	require.NoError(t, tape.Close())
	tape = autograd.NewTape(b.Ctx, b.RT)
	(*nn.Embedding)(nil).Forward(tape, autograd.Upload(tape, []int32{1}))
	require.ErrorIs(t, tape.Close(), autograd.ErrInvalid)
}

// TestAnIndexOutOfRange is an error of the next read, and gets no gradient.
func TestAnIndexOutOfRange(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, index := range []int64{-1, 3, 1 << 40} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		w := tape.Leaf(tapetest.Upload(b, []float64{1, 2, 3}, 3, 1))
		y := tape.Embedding(autograd.Upload(tape, []int64{0, index}), w, tensor.EmbeddingConfig{}).Keep()
		_, err := tape.Backward(tape.Sum(y))
		require.NoError(t, err)
		_, err = tensor.ToSlice[float64](b.Ctx, y.Value(), nil)
		require.ErrorIs(t, err, tensor.ErrIndex)
		require.ErrorContains(t, err, "at element 1: index out of range: want 0..2")
		assert.Equal(t, []float64{1, 0, 0}, tapetest.Read[float64](b, w.Grad()))
		require.NoError(t, tape.Close())
	}
}

func TestChoicesRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, c := range map[string]struct {
		f    func(t *autograd.Tape, x, i *autograd.Variable)
		want error
	}{
		"an index of floats": {func(t *autograd.Tape, x, _ *autograd.Variable) { t.IndexSelect(x, 0, t.Reshape(x, 6)) }, tensor.ErrDtype},
		"an index of rows":   {func(t *autograd.Tape, x, i *autograd.Variable) { t.IndexSelect(x, 0, t.Reshape(i, 2, 1)) }, tensor.ErrShape},
		"a third dimension":  {func(t *autograd.Tape, x, i *autograd.Variable) { t.IndexSelect(x, 2, i) }, tensor.ErrShape},
		"a flat index":       {func(t *autograd.Tape, x, i *autograd.Variable) { t.Gather(x, 0, i) }, tensor.ErrShape},
		"an index of more rows": {func(t *autograd.Tape, x, _ *autograd.Variable) {
			t.Gather(x, 1, autograd.Upload(t, make([]int32, 3), 3, 1))
		}, tensor.ErrShape},
		"a table of one row": {func(t *autograd.Tape, x, i *autograd.Variable) {
			t.Embedding(i, t.Reshape(x, 6), tensor.EmbeddingConfig{})
		}, tensor.ErrShape},
		"padding behind": {func(t *autograd.Tape, x, i *autograd.Variable) {
			t.Embedding(i, x, tensor.EmbeddingConfig{PaddingIndex: []int{2}})
		}, autograd.ErrInvalid},
		"two paddings": {func(t *autograd.Tape, x, i *autograd.Variable) {
			t.Embedding(i, x, tensor.EmbeddingConfig{PaddingIndex: []int{0, 1}})
		}, autograd.ErrInvalid},
		"matrices to BMM":         {func(t *autograd.Tape, x, _ *autograd.Variable) { t.BMM(x, t.Transpose(x)) }, tensor.ErrShape},
		"weights of a batch":      {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Linear(x, t.Reshape(x, 1, 2, 3), nil) }, tensor.ErrShape},
		"parts of too little":     {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Split(x, 1, 1, 1) }, tensor.ErrShape},
		"a squeeze the other way": {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Unsqueeze(t.Narrow(x, 0, 0, 0), 3) }, tensor.ErrShape},
		"no part":                 {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Chunk(x, 1, 0) }, autograd.ErrInvalid},
		"parts of no dimension":   {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Split(x, 2, 1) }, tensor.ErrShape},
		"a squeeze of nothing":    {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Squeeze(x, 2) }, tensor.ErrShape},
		"a dimension before that": {func(t *autograd.Tape, x, _ *autograd.Variable) { t.Flatten(x, 1, 0) }, tensor.ErrShape},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x, i := autograd.Upload(tape, make([]float64, 6), 2, 3), autograd.Upload(tape, []int32{0, 1})
		c.f(tape, x, i)
		assert.ErrorIs(t, tape.Close(), c.want, name)
	}
}

// TestShapes of views and parts, on both kinds of tapes.
func TestShapes(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	data := make([]float64, 24)
	for i := range data {
		data[i] = rand.Float64()
	}
	for _, tape := range []*autograd.Tape{autograd.NewTape(b.Ctx, b.RT), autograd.NoGrad(b.Ctx, b.RT)} {
		x := autograd.Upload(tape, data, 2, 1, 3, 4).Keep()
		shapes := func(vs ...*autograd.Variable) (all [][]int) {
			for _, v := range vs {
				all = append(all, v.Shape())
			}
			return all
		}
		assert.Equal(t, [][]int{{2, 3, 4}, {2, 3, 4}, {2, 1, 3, 4}}, shapes(tape.Squeeze(x), tape.Squeeze(x, -3), tape.Squeeze(x, 0)))
		assert.Equal(t, [][]int{{24}, {2, 3, 4}, {2, 1, 12}}, shapes(tape.Flatten(x, 0, -1), tape.Flatten(x, 1, 2), tape.Flatten(x, -2, 3)))
		assert.Equal(t, [][]int{{2, 1, 3, 3}, {2, 1, 3, 1}}, shapes(tape.Split(x, -1, 3)...))
		assert.Equal(t, [][]int{{2, 1, 3, 1}, {2, 1, 3, 0}, {2, 1, 3, 3}}, shapes(tape.Split(x, 3, 1, 0, 3)...))
		assert.Equal(t, [][]int{{2, 1, 2, 4}, {2, 1, 1, 4}}, shapes(tape.Chunk(x, 2, 2)...))
		assert.Equal(t, [][]int{{1, 1, 3, 4}, {1, 1, 3, 4}}, shapes(tape.Chunk(x, 0, math.MaxInt)...))
		assert.Equal(t, [][]int{{2, 1, 3, 4, 1}, {1, 2, 1, 3, 4}}, shapes(tape.Unsqueeze(x, -1), tape.Unsqueeze(x, -5)))
		parts := tape.Chunk(tape.MulScalar(x, 2), 0, 2)
		require.NoError(t, tape.Err())
		for i, p := range parts {
			for j, v := range tapetest.Read[float64](b, p.Value()) {
				require.Equal(t, 2*data[12*i+j], v)
			}
		}
		require.NoError(t, tape.Close())
	}
}

// TestLinearOfAnyRank: results and gradients are those of a matrix of all rows.
func TestLinearOfAnyRank(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(3, 2))
	f := func(name string, shapes [][]int, f func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable) function {
		return function{name, shapes, f}
	}
	linear := func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.Linear(v[0], v[1], v[2]) }
	rectified := func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
		return t.LinearReLU(t.AddScalar(v[0], -1), v[1], v[2])
	}
	for _, f := range []function{f("a batch", [][]int{{2, 3, 4}, {5, 4}, {5}}, linear), f("a vector", [][]int{{4}, {5, 4}, {5}}, linear),
		f("a batch with ReLU", [][]int{{2, 3, 4}, {5, 4}, {5}}, rectified),
		f("batches", [][]int{{2, 1, 3, 4}, {5, 4, 2}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.MatMul(v[0], v[1]) }),
		f("a batch, transposed", [][]int{{2, 4, 3}, {2, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.MatMul(v[0], v[1], tensor.TransA, tensor.TransB)
		}),
		f("a vector and a batch", [][]int{{4}, {2, 4, 3}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.MatMul(v[0], v[1]) }),
		f("a batch and a vector", [][]int{{2, 4, 3}, {4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.MatMul(v[0], v[1], tensor.TransA)
		}),
		f("two vectors", [][]int{{4}, {4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable { return t.MatMul(v[0], v[1]) }),
		f("BMM", [][]int{{2, 3, 4}, {2, 5, 4}}, func(t *autograd.Tape, v []*autograd.Variable) *autograd.Variable {
			return t.BMM(v[0], v[1], tensor.TransB)
		})} {
		checkSlopes(b, f, random)
	}
}
