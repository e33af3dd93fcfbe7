package remat_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestCheckpointOfLayers: models train bit-identically, including running statistics of batch
// norms, with the same names, and a step needs less memory.
func TestCheckpointOfLayers(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	whole := func(l nn.Layer) nn.Layer { return l }
	for name, c := range map[string]struct {
		layers func(in *nn.Initializer, wrap func(nn.Layer) nn.Layer) nn.Sequential
		shape  []int
	}{
		"pictures": {func(in *nn.Initializer, wrap func(nn.Layer) nn.Layer) (s nn.Sequential) {
			for range 3 {
				s = append(s, wrap(nn.Sequential{in.Conv2d(3, 3, 3, nn.Padding(1)), in.BatchNorm(3), nn.GELU{}, &nn.Dropout{P: 0.3}}))
			}
			return append(s, nn.Flatten{})
		}, []int{4, 3, 6, 6}},
		"rows": {func(in *nn.Initializer, wrap func(nn.Layer) nn.Layer) (s nn.Sequential) {
			for range 4 {
				s = append(s, wrap(nn.Sequential{in.LayerNorm(8), in.Linear(8, 64), nn.ReLU{}, in.Linear(64, 8)}))
			}
			return s
		}, []int{256, 8}},
	} {
		train := func(wrap func(nn.Layer) nn.Layer) (all [][]float64, names []string, peak int64) {
			in := nn.Init(b.Ctx, b.RT, nn.Seed(3), nn.Dtype(tensor.Float64))
			model := c.layers(in, wrap)
			opt := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{LR: new(0.01)}))
			data := make([]float64, tapetest.Elements(c.shape))
			for i := range data {
				data[i] = float64(i*29%31)/31 - 0.4
			}
			x := in.Tensor(data, c.shape...)
			require.NoError(t, in.Err())
			for i, tape := range in.Steps(3) {
				b.Cache.ResetPeakStats()
				y := model.Forward(tape, tape.Input(x))
				loss := tape.Mean(tape.Mul(y, y))
				optim.Minimize(tape, loss, opt)
				all = append(all, []float64{loss.Item()})
				require.NoError(t, tape.Err(), "step %d", i)
				peak = b.Cache.MaxMemoryAllocated()
			}
			state, err := nn.StateDict(model)
			require.NoError(t, err)
			for _, n := range state {
				names = append(names, n.Name)
				if n.Tensor.Dtype() == tensor.Float64 {
					all = append(all, tapetest.Read[float64](b, n.Tensor))
				}
			}
			require.NoError(t, in.Close())
			return all, names, peak
		}
		want, names, peak := train(whole)
		got, same, less := train(remat.Layer)
		require.Equal(t, want, got, name)
		require.Equal(t, names, same, name)
		require.Less(t, less, peak, name)
	}
}

// TestCheckpointMemory: between the passes only a checkpoint's result is in memory, and while a
// checkpoint runs again no other checkpoint's values are.
func TestCheckpointMemory(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	b.NeedsHost("the blocks of the product's workspace are others elsewhere")
	const n, inner, count = 1024, 6, 5 // float64s of a value; values in a checkpoint; checkpoints
	x := tapetest.Upload(b, make([]float64, n))
	block := func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable {
		for range inner {
			x = tape.Tanh(x)
		}
		return x
	}
	run := func(apart func(*autograd.Tape, func() *autograd.Variable) *autograd.Variable) (between, peak int64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		y := tape.Leaf(x)
		for range count {
			in := y
			y = apart(tape, func() *autograd.Variable { return block(tape, in) })
		}
		loss := tape.Sum(y)
		y.Release()
		between = b.Bytes() / (8 * n)
		b.Cache.ResetPeakStats()
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		peak = (b.Cache.MaxMemoryAllocated() - b.OwnBytes) / (8 * n)
		require.EqualValues(t, 2, b.Bytes()/(8*n), "x and its gradient")
		require.NoError(t, tape.Close())
		return between, peak
	}
	between, peak := run(remat.Checkpoint)
	require.EqualValues(t, 1+count-1, between, "x, and what lies between the checkpoints")
	require.LessOrEqual(t, peak, int64(1+count-1+inner+2), "those, one checkpoint's values, and two gradients")
	between, _ = run((*autograd.Tape).Frame)
	require.EqualValues(t, 1+count*inner, between)
}

// TestCheckpointReleases: the program may release a checkpoint's inputs outside, or its function
// inside.
func TestCheckpointReleases(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{0.5, 2}, 2)
	for _, inside := range []bool{false, true} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		leaf := tape.Leaf(x)
		h := tape.Tanh(leaf)
		y := remat.Checkpoint(tape, func() *autograd.Variable {
			z := tape.Mul(h, h)
			if inside {
				h.Release()
			}
			return tape.Tanh(z)
		})
		h.Release()
		require.False(t, h.Value().Released(), "Backward needs it")
		_, err := tape.Backward(tape.Sum(y))
		require.NoError(t, err)
		require.True(t, h.Value().Released())
		plain := b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
			h := t.Tanh(vs[0])
			return t.Tanh(t.Mul(h, h))
		}, []float64{0.5, 2})
		require.Equal(t, plain[0], tapetest.Read[float64](b, leaf.Grad()))
		require.NoError(t, tape.Close())
	}
}

// TestCheckpointLabels: recomputed values are labelled as activations of their module, not as
// gradients.
func TestCheckpointLabels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, make([]float64, 1000))
	tape := autograd.NewTape(memcache.WithStep(b.Ctx, 9), b.RT)
	v := tape.Leaf(x)
	var seen []memcache.Label
	y := tape.Module("block", func() *autograd.Variable {
		return remat.Checkpoint(tape, func() *autograd.Variable {
			return tape.Module("inner", func() *autograd.Variable {
				y := tape.Tanh(v)
				seen = append(seen, y.Value().Label())
				return tape.Tanh(y)
			})
		})
	})
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.Equal(t, memcache.CategoryGradient, v.Grad().Label().Category)
	require.NoError(t, tape.Close())
	want := memcache.Label{Module: "block.inner", Category: memcache.CategoryActivation, Step: 9}
	require.Equal(t, []memcache.Label{want, want}, seen)
}

// TestCheckpointKeep: variables that the function keeps, in each run, stay until Close.
func TestCheckpointKeep(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	var kept []*autograd.Variable
	y := remat.Checkpoint(tape, func() *autograd.Variable {
		kept = append(kept, tape.Tanh(v).Keep())
		return tape.Tanh(kept[len(kept)-1])
	})
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.Len(t, kept, 2)
	require.Equal(t, tapetest.Read[float64](b, kept[0].Value()), tapetest.Read[float64](b, kept[1].Value()))
	require.NoError(t, tape.Close())
	require.True(t, kept[0].Value().Released() && kept[1].Value().Released())
}

// TestCheckpointOfAFunctionOfItsOwn: tensors that a program's own operation saves are released
// between the runs.
func TestCheckpointOfAFunctionOfItsOwn(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	var saved []*tensor.Tensor
	y := remat.Checkpoint(tape, func() *autograd.Variable {
		return tape.Func("Twice", []*autograd.Variable{v}, func(c *autograd.Call) (*tensor.Tensor, error) {
			own, err := c.Runtime().MulScalar(c.Context(), c.Input(0), 3)
			if err != nil {
				return nil, err
			}
			c.Save(own)
			saved = append(saved, own)
			return c.Runtime().MulScalar(c.Context(), c.Input(0), 2)
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return c.Grads(c.Runtime().Mul(c.Context(), g, c.Saved()[0]))
		})
	})
	require.Len(t, saved, 1)
	require.True(t, saved[0].Released())
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.True(t, saved[1].Released())
	require.Equal(t, []float64{3, 6}, tapetest.Read[float64](b, v.Grad()))
	require.NoError(t, tape.Close())
}

// TestCheckpointWithoutGradients: on a tape without gradients a checkpoint is a frame, and a
// function whose result needs no gradient does not run again.
func TestCheckpointWithoutGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	for _, record := range []bool{true, false} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		v, runs := tape.Input(x), 0
		y := remat.Checkpoint(tape, func() *autograd.Variable {
			runs++
			h := tape.Tanh(v)
			return tape.Add(h, tape.Mul(h, h))
		})
		require.Same(t, v, remat.Checkpoint(tape, func() *autograd.Variable { _ = tape.Tanh(v); return v }))
		loss := tape.Sum(y)
		require.NoError(t, tape.Err())
		require.Len(t, tape.Nodes(), 0)
		require.Equal(t, 1, runs)
		_, err := tape.Backward(loss)
		require.ErrorIs(t, err, autograd.ErrNoGrad)
		require.ErrorIs(t, tape.Close(), autograd.ErrNoGrad)
	}
}

// TestCheckpointWithoutASeed: random numbers are the same in both runs, even if the program sets no
// seed.
func TestCheckpointWithoutASeed(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ones := make([]float64, 256)
	for i := range ones {
		ones[i] = 1
	}
	x := tapetest.Upload(b, ones)
	tape := autograd.NewTape(context.Background(), b.RT)
	v := tape.Leaf(x)
	var runs [][]float64
	y := remat.Checkpoint(tape, func() *autograd.Variable {
		y := tape.Dropout(v, 0.5)
		runs = append(runs, tapetest.Read[float64](b, y.Value()))
		return y
	})
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, errors.Join(err))
	require.Len(t, runs, 2)
	require.Equal(t, runs[0], runs[1])
	require.Equal(t, runs[0], tapetest.Read[float64](b, v.Grad()), fmt.Sprint(len(runs)))
	require.NoError(t, tape.Close())
}
