package nn_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

func normals(random *rand.Rand, n int) []float32 {
	data := make([]float32, n)
	for i := range data {
		data[i] = float32(random.NormFloat64())
	}
	return data
}

// requireClose compares to 1e-5.
func requireClose(t *testing.T, want, got []float32, what string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		require.InDelta(t, want[i], got[i], 1e-5, "%s, element %d", fmt.Sprintf(what, args...), i)
	}
}

// TestKVCacheOfAModel computes the tokens of random texts in random pieces, and compares them with
// all of them at once, for several layers and rows, batch first or not, with padding or not, again
// after Reset.
func TestKVCacheOfAModel(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	for trial := range tapetest.Rounds(40, 12) {
		random := rand.New(rand.NewPCG(uint64(trial), 31))
		layers, batch, heads, head, length := 1+random.IntN(3), 1+random.IntN(3), 1+random.IntN(3), 1+random.IntN(9), 1+random.IntN(40)
		n, first, padded := heads*head, random.IntN(2) == 0, random.IntN(2) == 0
		options := []nn.LayerOption{nn.Causal()}
		if first {
			options = append(options, nn.BatchFirst())
		}
		in := nn.Init(b.Ctx, b.RT, nn.Seed(uint64(trial)))
		var model []*nn.MultiHeadAttention
		for range layers {
			if random.IntN(3) == 0 {
				options = append(options, nn.KeyDim(n)) // weights of their own
			}
			model = append(model, in.MultiHeadAttention(n, heads, options...))
		}
		cache, err := nn.NewKVCache(b.Ctx, b.RT, nn.KVCacheConfig{Layers: layers, Batch: batch, Heads: heads, Length: length, HeadSize: head})
		require.NoError(t, err)
		require.NoError(t, in.Err())
		data := normals(random, length*batch*n)
		padding := make([]uint8, batch*length) // rows begin with tokens that nothing sees
		for i := range padding {
			if padded && i%length > 0 && i%length < random.IntN(4) {
				padding[i] = 1
			}
		}
		place := func(step, row int) int {
			if first {
				return (row*length + step) * n
			}
			return (step*batch + row) * n
		}
		// run computes tokens from one on up to another.
		run := func(from, to int, layer func(t *autograd.Tape, i int, x *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable) []float32 {
			tape := autograd.NoGrad(b.Ctx, b.RT)
			defer func() { require.NoError(t, tape.Close()) }()
			shape := []int{to - from, batch, n}
			if first {
				shape = []int{batch, to - from, n}
			}
			part := make([]float32, 0, (to-from)*batch*n)
			for i := range (to - from) * batch {
				step, row := i/batch, i%batch
				if first {
					step, row = i%(to-from), i/(to-from)
				}
				part = append(part, data[place(from+step, row):][:n]...)
			}
			x := autograd.Upload(tape, part, shape...)
			for i := range layers {
				cfg := autograd.AttentionConfig{}
				if padded {
					seen := make([]uint8, 0, batch*to)
					for row := range batch {
						seen = append(seen, padding[row*length:][:to]...)
					}
					cfg.KeyPadding = autograd.Upload(tape, seen, batch, to)
				}
				x = tape.Add(x.Keep(), layer(tape, i, x, cfg))
			}
			require.NoError(t, tape.Err())
			got := tapetest.Read[float32](b, x.Value())
			byStep := make([]float32, 0, len(got)) // (steps, batch, n)
			for i := range (to - from) * batch {
				at := i
				if first {
					at = i%batch*(to-from) + i/batch
				}
				byStep = append(byStep, got[at*n:][:n]...)
			}
			return byStep
		}
		want := run(0, length, func(t *autograd.Tape, i int, x *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
			cfg.Causal = true
			return model[i].Attend(t, x, x, x, cfg)
		})
		for range 2 {
			var got []float32
			for from := 0; from < length; {
				to := from + 1
				if random.IntN(2) == 0 {
					to = min(length, from+1+random.IntN(8))
				}
				before := b.Bytes()
				got = append(got, run(from, to, func(t *autograd.Tape, i int, x *autograd.Variable, cfg autograd.AttentionConfig) *autograd.Variable {
					return model[i].ForwardCached(t, x, cache, i, cfg)
				})...)
				require.Equal(t, before, b.Bytes(), "a step leaves memory behind")
				require.Equal(t, to, cache.Len())
				from = to
			}
			requireClose(t, want, got, "trial %d: %d layers, %d rows, %d heads of %d, %d tokens, batch first %v, padding %v", trial, layers, batch, heads, head, length, first, padded)
			cache.Reset()
			require.Zero(t, cache.Len())
		}
		require.NoError(t, cache.Release())
		require.NoError(t, cache.Release())
		require.NoError(t, in.Close())
	}
	require.Zero(t, b.Bytes())
}

// TestKVCacheOfGroupedHeads: queries have more heads than keys, in both dtypes.
func TestKVCacheOfGroupedHeads(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(3, 32))
	for trial := range tapetest.Rounds(20, 6) {
		batch, heads, group, head, length := 1+random.IntN(2), 1+random.IntN(3), 1+random.IntN(3), 1+random.IntN(9), 2+random.IntN(40)
		q, k, v := normals(random, batch*heads*group*length*head), normals(random, batch*heads*length*head), normals(random, batch*heads*length*head)
		cache, err := nn.NewKVCache(b.Ctx, b.RT, nn.KVCacheConfig{Layers: 1, Batch: batch, Heads: heads, Length: length, HeadSize: head})
		require.NoError(t, err)
		tape := autograd.NoGrad(b.Ctx, b.RT)
		all := [3]*autograd.Variable{autograd.Upload(tape, q, batch, heads*group, length, head).Keep(), autograd.Upload(tape, k, batch, heads, length, head).Keep(), autograd.Upload(tape, v, batch, heads, length, head).Keep()}
		want := tapetest.Read[float32](b, tape.ScaledDotProductAttention(all[0], all[1], all[2], autograd.AttentionConfig{Causal: true, GQA: true, Scale: 0.5}).Keep().Value())
		var parts []*autograd.Variable
		for at := 0; at < length; {
			n := min(length-at, 1+random.IntN(5))
			part := func(x *autograd.Variable) *autograd.Variable { return tape.Narrow(x, 2, at, n) }
			parts = append(parts, cache.Attend(tape, 0, part(all[0]), part(all[1]), part(all[2]), autograd.AttentionConfig{GQA: true, Scale: 0.5}).Keep())
			at += n
		}
		require.NoError(t, tape.Err())
		requireClose(t, want, tapetest.Read[float32](b, tape.Cat(2, parts...).Value()), "trial %d", trial)
		require.NoError(t, tape.Close())
		require.NoError(t, cache.Release())
	}
}

// TestKVCacheRefuses: errors name the numbers, and the tokens stay unchanged.
func TestKVCacheRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	cache, err := nn.NewKVCache(b.Ctx, b.RT, nn.KVCacheConfig{Layers: 2, Batch: 1, Heads: 2, Length: 4, HeadSize: 64})
	require.NoError(t, err)
	held := b.Cache.AllocatedByCategory()[memcache.CategoryActivation]
	assert.Equal(t, int64(4*2*4*64*4), held, "bytes of its category")
	assert.Equal(t, held, b.Bytes())
	type on = func(t *autograd.Tape) *autograd.Variable
	attend := func(layer, tokens int, cfg autograd.AttentionConfig) on {
		return func(t *autograd.Tape) *autograd.Variable {
			x := autograd.Upload(t, make([]float32, 2*tokens*64), 1, 2, tokens, 64).Keep()
			return cache.Attend(t, layer, x, x, x, cfg)
		}
	}
	plain := autograd.AttentionConfig{}
	step := func(f on) error {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		f(tape)
		err := tape.Err()
		_ = tape.Close()
		return err
	}
	require.NoError(t, step(attend(0, 3, plain)))
	assert.ErrorContains(t, step(attend(0, 1, plain)), "layer 0 has 3 tokens and gets 1, and all have [3 0]")
	assert.ErrorContains(t, step(attend(1, 2, plain)), "layer 1 has 0 tokens and gets 2, and all have [3 0]")
	require.NoError(t, step(attend(1, 3, plain)))
	assert.ErrorContains(t, step(attend(0, 2, plain)), "it is full: 3 of 4 tokens, and 2 more")
	assert.ErrorContains(t, step(attend(2, 1, plain)), "layer 2 of 2")
	assert.ErrorContains(t, step(func(t *autograd.Tape) *autograd.Variable {
		q, k := autograd.Upload(t, make([]float32, 2*2*64), 1, 2, 2, 64), autograd.Upload(t, make([]float32, 2*64), 1, 2, 1, 64).Keep()
		return cache.Attend(t, 0, q, k, k, plain)
	}), "queries (1, 2, 2, 64) for keys (1, 2, 1, 64)")
	assert.ErrorContains(t, step(func(t *autograd.Tape) *autograd.Variable {
		x := autograd.Upload(t, make([]float32, 2*64), 2, 1, 1, 64).Keep()
		return cache.Attend(t, 0, x, x, x, plain)
	}), "keys (2, 1, 1, 64), values (2, 1, 1, 64): want (1, 2, tokens, 64)")
	assert.ErrorIs(t, step(func(t *autograd.Tape) *autograd.Variable {
		x := autograd.Upload(t, make([]float64, 2*64), 1, 2, 1, 64).Keep()
		return cache.Attend(t, 0, x, x, x, plain)
	}), tensor.ErrDtype)
	assert.ErrorContains(t, step(func(tape *autograd.Tape) *autograd.Variable {
		return attend(0, 1, autograd.AttentionConfig{Mask: autograd.Upload(tape, []float32{0}, 1, 1)})(tape)
	}), "a mask")
	assert.ErrorIs(t, step(func(tape *autograd.Tape) *autograd.Variable {
		return attend(0, 1, autograd.AttentionConfig{KeyPadding: autograd.Upload(tape, make([]uint8, 3), 1, 3)})(tape)
	}), tensor.ErrShape, "padding of 3 tokens for 4: the layer has as many as before")
	training := autograd.NewTape(b.Ctx, b.RT)
	attend(0, 1, plain)(training)
	assert.ErrorContains(t, training.Err(), "records a backward pass")
	_ = training.Close()
	x := tapetest.Upload(b, make([]float32, 2*64), 1, 2, 1, 64)
	_, err = b.RT.Capture(b.Ctx, func(ctx context.Context) error {
		tape := autograd.NoGrad(ctx, b.RT)
		v := tape.Input(x)
		cache.Attend(tape, 0, v, v, v, plain)
		return tape.Close()
	})
	assert.ErrorIs(t, err, tensor.ErrCapturing)
	require.NoError(t, x.Release())
	assert.Equal(t, 3, cache.Len())
	require.NoError(t, step(attend(0, 1, plain)))
	require.NoError(t, cache.Release())
	assert.ErrorIs(t, step(attend(0, 1, plain)), autograd.ErrInvalid, "released")
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	layer := in.MultiHeadAttention(128, 2)
	assert.ErrorContains(t, step(func(tape *autograd.Tape) *autograd.Variable {
		return layer.ForwardCached(tape, autograd.Upload(tape, make([]float32, 128), 1, 128), cache, 0, plain)
	}), "want new tokens with a batch")
	require.NoError(t, in.Close())
	for _, cfg := range []nn.KVCacheConfig{{}, {Layers: 1, Batch: 1, Heads: 1, Length: -1, HeadSize: 1}} {
		_, err := nn.NewKVCache(b.Ctx, b.RT, cfg)
		assert.ErrorIs(t, err, autograd.ErrInvalid)
	}
	live, _ := b.RT.Live()
	require.Zero(t, live)
	_, err = nn.NewKVCache(b.Ctx, b.RT, nn.KVCacheConfig{Layers: 9, Batch: 1, Heads: 1, Length: 1 << 20, HeadSize: 4})
	assert.ErrorContains(t, err, "out of memory")
	_, err = nn.NewKVCache(b.Ctx, b.RT, nn.KVCacheConfig{Layers: math.MaxInt, Batch: 1, Heads: 1, Length: 1 << 30, HeadSize: 1})
	assert.ErrorContains(t, err, "out of memory", "the layers are not allocated before their tokens")
	live, _ = b.RT.Live()
	require.Zero(t, live, "a cache that does not fit leaves nothing")
}
