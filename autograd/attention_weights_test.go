package autograd_test

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// hiding is an attention of random size with every kind of mask, and the one mask of numbers, of
// its whole shape, that hides the same.
type hiding struct {
	batch, heads, group, l, s, e int
	q, k, v                      []float64
	padding                      []uint8
	mask                         any // []uint8 or []float64 of (heads*group, l, s), or nil
	causal                       bool
	all                          []float64
}

func newHiding(random *rand.Rand) *hiding {
	h := &hiding{batch: 1 + random.IntN(3), heads: 1 + random.IntN(2), group: 1 + random.IntN(3), l: 1 + random.IntN(40), s: 1 + random.IntN(40), e: 1 + random.IntN(5), causal: random.IntN(3) == 0}
	rows := h.heads * h.group
	numbers := func(n int) []float64 {
		data := make([]float64, n)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		return data
	}
	h.q, h.k, h.v = numbers(h.batch*rows*h.l*h.e), numbers(h.batch*h.heads*h.s*h.e), numbers(h.batch*h.heads*h.s*h.e)
	h.padding = make([]uint8, h.batch*h.s) // a whole row too, now and then
	for i := range h.padding {
		h.padding[i] = uint8(random.IntN(1 + i/h.s%3))
	}
	flags, added := make([]uint8, rows*h.l*h.s), numbers(rows*h.l*h.s)
	for i := range flags {
		flags[i] = uint8(random.IntN(3))
		if random.IntN(4) == 0 || i/h.s%5 == 1 { // all keys of some queries
			added[i] = math.Inf(-1)
		}
	}
	kind := random.IntN(3)
	if h.causal {
		kind = 0
	}
	h.mask = []any{nil, flags, added}[kind]
	for i := range h.batch * rows * h.l * h.s {
		key, query, row, at := i%h.s, i/h.s%h.l, i/(rows*h.l*h.s), i%(rows*h.l*h.s)
		sum := 0.0
		if kind == 2 {
			sum = added[at]
		}
		if h.padding[row*h.s+key] != 0 || h.causal && key > query || kind == 1 && flags[at] == 0 {
			sum = math.Inf(-1)
		}
		h.all = append(h.all, sum)
	}
	return h
}

// run gives the result and the gradients of queries, keys, values and of a mask of numbers.
func (h *hiding) run(b *tapetest.Bench, f func(t *autograd.Tape, q, k, v, padding, mask *autograd.Variable) *autograd.Variable) (all [][]float64) {
	tape := autograd.NewTape(b.Ctx, b.RT)
	defer func() { require.NoError(b.T, tape.Close()) }()
	rows := h.heads * h.group
	leaves := []*autograd.Variable{tape.Leaf(tapetest.Upload(b, h.q, h.batch, rows, h.l, h.e)), tape.Leaf(tapetest.Upload(b, h.k, h.batch, h.heads, h.s, h.e)), tape.Leaf(tapetest.Upload(b, h.v, h.batch, h.heads, h.s, h.e))}
	var mask *autograd.Variable
	switch m := h.mask.(type) {
	case []uint8:
		mask = autograd.Upload(tape, m, rows, h.l, h.s)
	case []float64:
		mask = tape.Leaf(tapetest.Upload(b, m, rows, h.l, h.s))
		leaves = append(leaves, mask)
	}
	y := f(tape, leaves[0], leaves[1], leaves[2], autograd.Upload(tape, h.padding, h.batch, h.s), mask).Keep()
	require.NoError(b.T, tape.Err())
	_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.AddScalar(tape.Sin(y), 1))))
	require.NoError(b.T, err)
	all = append(all, tapetest.Read[float64](b, y.Value()))
	for _, x := range leaves {
		if x.Grad() != nil {
			all = append(all, tapetest.Read[float64](b, x.Grad()))
		}
	}
	return all
}

// TestMasksAreOneMask compares key padding, with and without another mask, with one mask of the
// whole shape, for an attention that stores no weights, and for the weights. Queries that see no
// key get 0.
func TestMasksAreOneMask(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	hidden := 0
	for trial := range tapetest.Rounds(60, 20) {
		h := newHiding(rand.New(rand.NewPCG(uint64(trial), 41)))
		want := h.run(b, func(t *autograd.Tape, q, k, v, _, mask *autograd.Variable) *autograd.Variable {
			all := autograd.Upload(t, h.all, h.batch, h.heads*h.group, h.l, h.s)
			if mask != nil && mask.RequiresGrad() { // -Inf is in both
				all = t.Where(autograd.Upload(t, finite(h.all), all.Shape()...), mask, all)
			}
			return t.ScaledDotProductAttention(q, k, v, autograd.AttentionConfig{Mask: all, GQA: true})
		})
		cfg := func(padding, mask *autograd.Variable) autograd.AttentionConfig {
			return autograd.AttentionConfig{Causal: h.causal, KeyPadding: padding, Mask: mask, GQA: h.group > 1}
		}
		got := h.run(b, func(t *autograd.Tape, q, k, v, padding, mask *autograd.Variable) *autograd.Variable {
			return t.ScaledDotProductAttention(q, k, v, cfg(padding, mask))
		})
		weighed := h.run(b, func(t *autograd.Tape, q, k, v, padding, mask *autograd.Variable) *autograd.Variable {
			w := t.AttentionWeights(q, k, cfg(padding, mask))
			if h.group > 1 {
				v = t.Unsqueeze(v, 2)
				w = t.Reshape(w, h.batch, h.heads, h.group, h.l, h.s)
			}
			return t.Reshape(t.MatMul(w, v), h.batch, h.heads*h.group, h.l, h.e)
		})
		require.Len(t, got, len(want))
		for i := range want {
			tapetest.RequireNear(t, want[i], got[i], "trial %d, array %d", trial, i)
			tapetest.RequireNear(t, want[i], weighed[i], "trial %d, array %d of the weights", trial, i)
		}
		for row := range len(h.all) / h.s {
			if !slices.Contains(finite(h.all[row*h.s:][:h.s]), 1) {
				hidden++
				require.Equal(t, make([]float64, h.e), weighed[0][row*h.e:][:h.e], "a query without keys")
				require.Equal(t, make([]float64, h.e), weighed[1][row*h.e:][:h.e], "its gradient")
			}
		}
	}
	require.Greater(t, hidden, 20)
}

func finite(all []float64) []uint8 {
	flags := make([]uint8, len(all))
	for i, v := range all {
		if !math.IsInf(v, 0) {
			flags[i] = 1
		}
	}
	return flags
}

// TestMemoryOfMasksAndDropout: key padding takes a number for each key, and dropped weights are
// held twice. On a tape that does not train, results are bit-identical to those without dropout.
func TestMemoryOfMasksAndDropout(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	const batch, heads, n, e = 2, 3, 128, 4
	random := rand.New(rand.NewPCG(8, 42))
	data := make([]float64, batch*heads*n*e)
	for i := range data {
		data[i] = random.NormFloat64()
	}
	held := func(tape *autograd.Tape, cfg autograd.AttentionConfig) (values []float64, bytes, peak int64) {
		x := tape.Leaf(tapetest.Upload(b, data, batch, heads, n, e))
		before := b.Bytes()
		b.Cache.ResetPeakStats()
		y := tape.ScaledDotProductAttention(x, x, x, cfg)
		require.NoError(t, tape.Err())
		bytes, peak = b.Bytes()-before, b.Cache.Stats().AllocatedBytes.All.Peak-b.OwnBytes-before
		values = tapetest.Read[float64](b, y.Value())
		require.NoError(t, tape.Close())
		return values, bytes, peak
	}
	train := func() *autograd.Tape { return autograd.NewTape(b.Ctx, b.RT) }
	plain, without, peak := held(train(), autograd.AttentionConfig{})
	padded := train()
	_, _, peakPadded := held(padded, autograd.AttentionConfig{KeyPadding: autograd.Upload(padded, make([]uint8, batch*n), batch, n)})
	assert.LessOrEqual(t, peakPadded-peak, int64(2*batch*n*8), "bytes of a mask")
	_, with, _ := held(train(), autograd.AttentionConfig{Dropout: 0.5})
	weights := int64(batch * heads * n * n * 8)
	assert.InDelta(t, 2*weights, with-without, float64(weights)/20, "bytes of the weights, dropped and not")
	same, _, _ := held(autograd.NoGrad(b.Ctx, b.RT), autograd.AttentionConfig{Dropout: 0.5})
	assert.Equal(t, plain, same)
	still := train()
	still.SetTraining(false)
	same, bytes, _ := held(still, autograd.AttentionConfig{Dropout: 0.5})
	assert.Equal(t, plain, same)
	assert.Equal(t, without, bytes)
}

// TestDroppedAttentionIsReproducible: gradients are bit-identical in a second call, in a capture
// and in a checkpoint. Another seed gives other ones.
func TestDroppedAttentionIsReproducible(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	const steps, batch, heads, head = 9, 2, 2, 3
	random := rand.New(rand.NewPCG(9, 43))
	data := make([]float64, steps*batch*3*heads*head)
	for i := range data {
		data[i] = random.NormFloat64()
	}
	x := tapetest.Upload(b, data, steps, batch, 3*heads*head)
	padding := tapetest.Upload(b, []uint8{0, 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1}, batch, steps)
	out := tapetest.Upload(b, make([]float64, len(data)), steps, batch, 3*heads*head)
	step := func(ctx context.Context, seed uint64, region func(*autograd.Tape, func() *autograd.Variable) *autograd.Variable) error {
		tape := autograd.NewTape(ctx, b.RT)
		tape.SetSeed(seed)
		leaf := tape.Leaf(x)
		pad := tape.Input(padding)
		y := region(tape, func() *autograd.Variable {
			y := tape.SelfAttention(leaf, heads, false, autograd.AttentionConfig{Causal: true, KeyPadding: pad, Dropout: 0.4})
			return tape.Mul(y, tape.Sin(y))
		})
		_, err := tape.Backward(tape.Sum(y))
		if err == nil {
			err = b.RT.CopyInPlace(ctx, out, leaf.Grad())
		}
		if err != nil {
			_ = tape.Close()
			return err
		}
		return tape.Close()
	}
	plain := func(_ *autograd.Tape, f func() *autograd.Variable) *autograd.Variable { return f() }
	grads := func(err error) []float64 {
		require.NoError(t, err)
		got := tapetest.Read[float64](b, out)
		require.NoError(t, b.RT.Zero(b.Ctx, out))
		return got
	}
	want := grads(step(b.Ctx, 7, plain))
	assert.Equal(t, want, grads(step(b.Ctx, 7, plain)), "again")
	assert.NotEqual(t, want, grads(step(b.Ctx, 8, plain)), "another seed")
	assert.Equal(t, want, grads(step(b.Ctx, 7, remat.Checkpoint)), "in a checkpoint")
	graph, err := b.RT.Capture(b.Ctx, func(ctx context.Context) error { return step(ctx, 7, plain) })
	require.NoError(t, err)
	assert.Equal(t, want, grads(graph.Replay(b.Ctx)), "in a capture")
	require.NoError(t, graph.Close())
}

// TestMasksRefuse: errors name the shapes.
func TestMasksRefuse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, c := range map[string]struct {
		cfg  func(t *autograd.Tape) autograd.AttentionConfig
		want error
	}{
		"padding of a head": {func(t *autograd.Tape) autograd.AttentionConfig {
			return autograd.AttentionConfig{KeyPadding: autograd.Upload(t, make([]uint8, 8), 2, 1, 4)}
		}, tensor.ErrShape},
		"padding of other keys": {func(t *autograd.Tape) autograd.AttentionConfig {
			return autograd.AttentionConfig{KeyPadding: autograd.Upload(t, make([]uint8, 6), 2, 3)}
		}, tensor.ErrShape},
		"padding of numbers": {func(t *autograd.Tape) autograd.AttentionConfig {
			return autograd.AttentionConfig{KeyPadding: autograd.Upload(t, make([]float64, 8), 2, 4)}
		}, tensor.ErrShape},
		"a dropped mask of more": {func(t *autograd.Tape) autograd.AttentionConfig {
			return autograd.AttentionConfig{Dropout: 0.5, Mask: autograd.Upload(t, make([]float64, 3*4*4), 3, 1, 1, 4, 4)}
		}, tensor.ErrShape},
		"a dropout of 2": {func(*autograd.Tape) autograd.AttentionConfig { return autograd.AttentionConfig{Dropout: 2} }, autograd.ErrInvalid},
		"a dropout of NaN": {func(*autograd.Tape) autograd.AttentionConfig {
			return autograd.AttentionConfig{Dropout: math.NaN()}
		}, autograd.ErrInvalid},
		"keys and gradients": {func(*autograd.Tape) autograd.AttentionConfig { return autograd.AttentionConfig{Keys: 2} }, autograd.ErrInvalid},
		"more keys":          {func(*autograd.Tape) autograd.AttentionConfig { return autograd.AttentionConfig{Keys: 5} }, tensor.ErrShape},
		"keys below 0":       {func(*autograd.Tape) autograd.AttentionConfig { return autograd.AttentionConfig{Keys: -1} }, tensor.ErrShape},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x := tape.Input(tapetest.Upload(b, make([]float64, 2*2*4*3), 2, 2, 4, 3))
		if name == "keys and gradients" {
			x = tape.Leaf(x.Value())
		}
		tape.ScaledDotProductAttention(x, x, x, c.cfg(tape))
		assert.ErrorIs(t, tape.Err(), c.want, name)
		_ = tape.Close()
	}
}

// TestRowsOfTheLeastNumber: a mask of the least finite number does not hide a row, with or without
// stored weights. -Inf hides it, in each dtype.
func TestRowsOfTheLeastNumber(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.Float64, tensor.BFloat16, tensor.Float16} {
		for _, c := range []struct{ mask, want float64 }{{-6e4, 0.5}, {math.Inf(-1), 0}} {
			tape := autograd.NoGrad(b.Ctx, b.RT)
			q := tape.Cast(autograd.Upload(tape, make([]float32, 2*4), 1, 2, 4), dtype).Keep()
			mask := tape.Cast(autograd.Upload(tape, []float32{float32(c.mask), float32(c.mask), 0, 0}, 2, 2), dtype).Keep()
			w := tape.AttentionWeights(q, q, autograd.AttentionConfig{Mask: mask})
			require.Equal(t, []float64{c.want, c.want, 0.5, 0.5}, numbersOf(b, w.Value()), "%v of %v", c.mask, dtype)
			y := tape.ScaledDotProductAttention(q, q, tape.AddScalar(q, 1), autograd.AttentionConfig{Mask: mask})
			require.Equal(t, 2*c.want, numbersOf(b, y.Value())[0], "%v of %v", c.mask, dtype)
			require.NoError(t, tape.Close())
		}
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	q := autograd.Upload(tape, make([]float32, 2*4), 1, 2, 4)
	least := autograd.Upload(tape, []float32{-math.MaxFloat32, -math.MaxFloat32, 0, 0}, 2, 2)
	require.Equal(t, []float64{0.5, 0.5, 0.5, 0.5}, numbersOf(b, tape.AttentionWeights(q, q, autograd.AttentionConfig{Mask: least}).Value()))
	require.NoError(t, tape.Close())
}

// TestDroppedAttentionOfNothing: without queries, keys or numbers, results and gradients are 0.
func TestDroppedAttentionOfNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, sizes := range [][5]int{{2, 2, 0, 4, 5}, {2, 0, 3, 4, 5}, {0, 2, 3, 4, 5}, {2, 2, 3, 0, 5}, {2, 2, 3, 4, 0}, {2, 2, 3, 4, 5}} {
		for _, causal := range []bool{false, true} {
			tape := autograd.NewTape(b.Ctx, b.RT)
			tape.SetSeed(1)
			ones := func(shape ...int) *autograd.Variable {
				x, err := b.RT.Full(b.Ctx, 1, tensor.Float64, shape...)
				require.NoError(t, err)
				defer x.Release()
				return tape.Leaf(x)
			}
			batch, l, s, e, n := sizes[0], sizes[1], sizes[2], sizes[3], sizes[4]
			q, k, v := ones(batch, l, e), ones(batch, s, e), ones(batch, s, n)
			hidden := autograd.Upload(tape, slices.Repeat([]uint8{1}, batch*s), batch, s)
			y := tape.ScaledDotProductAttention(q, k, v, autograd.AttentionConfig{Dropout: 0.5, KeyPadding: hidden, Causal: causal}).Keep()
			_, err := tape.Backward(tape.Sum(y))
			require.NoError(t, err, "%v", sizes)
			require.Equal(t, tensor.Shape{batch, l, n}, y.Shape())
			for _, x := range []*tensor.Tensor{y.Value(), q.Grad(), k.Grad(), v.Grad()} {
				for _, got := range tapetest.Read[float64](b, x) {
					require.Zero(t, got, "%v", sizes)
				}
			}
			require.NoError(t, tape.Close())
		}
	}
}

// TestMasksInBFloat16: masks hide the same keys as in float32, and weights are as exact as the
// dtype.
func TestMasksInBFloat16(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	const batch, heads, n, e = 2, 2, 5, 4
	random := rand.New(rand.NewPCG(8, 44))
	data := make([]float32, batch*heads*n*e)
	for i := range data {
		data[i] = float32(random.NormFloat64())
	}
	padding := []uint8{0, 1, 0, 1, 0, 1, 1, 1, 1, 1}
	run := func(dtype tensor.Dtype, cfg autograd.AttentionConfig) [][]float64 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		defer func() { require.NoError(t, tape.Close()) }()
		tape.SetSeed(4)
		x := tape.Leaf(tapetest.Upload(b, data, batch, heads, n, e))
		cfg.KeyPadding = autograd.Upload(tape, padding, batch, n)
		z := tape.Cast(x, dtype)
		y := tape.Cast(tape.ScaledDotProductAttention(z, z, z, cfg), tensor.Float32).Keep()
		_, err := tape.Backward(tape.Sum(tape.Mul(y, y)))
		require.NoError(t, err)
		return [][]float64{wide(tapetest.Read[float32](b, y.Value())), wide(tapetest.Read[float32](b, x.Grad()))}
	}
	for _, cfg := range []autograd.AttentionConfig{{}, {Causal: true}, {Dropout: 0.25}, {Dropout: 0.25, Causal: true}} {
		want, got := run(tensor.Float32, cfg), run(tensor.BFloat16, cfg)
		for i := range want {
			for j := range want[i] {
				require.InDelta(t, want[i][j], got[i][j], 0.03*max(1, math.Abs(want[i][j])), "%+v, array %d", cfg, i)
			}
			require.Equal(t, make([]float64, heads*n*e), got[i][heads*n*e:], "a row of padding")
		}
	}
}

func wide(of []float32) (all []float64) {
	for _, v := range of {
		all = append(all, float64(v))
	}
	return all
}
