package offload_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// deep is a model of blocks whose activations are far larger than its parameters.
func deep(in *nn.Initializer, blocks int, wrap func(int, nn.Layer) nn.Layer) (s nn.Sequential) {
	for i := range blocks {
		s = append(s, wrap(i, nn.Sequential{in.LayerNorm(16), in.Linear(16, 64), nn.GELU{}, in.Linear(64, 16), &nn.Dropout{P: 0.1}}))
	}
	return s
}

type trained struct {
	values     [][]float64
	names      []string
	peak, live int64
}

// train runs steps of a model of blocks, some of which are wrapped.
func train(b *tapetest.Bench, steps, blocks int, wrap func(int, nn.Layer) nn.Layer) (got trained) {
	b.T.Helper()
	in := nn.Init(b.Ctx, b.RT, nn.Seed(3), nn.Dtype(tensor.Float64))
	model := deep(in, blocks, wrap)
	opt := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	data := make([]float64, 512*16)
	for i := range data {
		data[i] = float64(i*29%31)/31 - 0.4
	}
	x := in.Tensor(data, 512, 16)
	require.NoError(b.T, in.Err())
	require.NoError(b.T, opt.Prepare(b.Ctx))
	for i, tape := range in.Steps(steps) {
		b.Cache.ResetPeakStats()
		y := model.Forward(tape, tape.Input(x))
		loss := tape.Mean(tape.Mul(y, y))
		y.Release()
		optim.Minimize(tape, loss, opt)
		got.values = append(got.values, []float64{loss.Item()})
		require.NoError(b.T, tape.Err(), "step %d", i)
		got.peak = b.Cache.MaxMemoryAllocated()
		require.NoError(b.T, tape.Close())
		live := b.Live()
		require.True(b.T, i == 0 || live == got.live, "step %d: %d blocks, and %d before", i, live, got.live)
		got.live = live
	}
	for _, p := range model.Parameters() {
		got.names = append(got.names, p.Name)
		got.values = append(got.values, tapetest.Read[float64](b, p.Value()))
	}
	require.NoError(b.T, in.Close())
	return got
}

// TestOffloadLowersThePeak: models train bit-identically and with the same names, and the peak of
// allocated memory is lower by the offloaded bytes, for half of the blocks and for all except the
// last.
func TestOffloadLowersThePeak(t *testing.T) {
	b := tapetest.Open(t, 256<<20)
	blocks := tapetest.Rounds(12, 8)
	want := train(b, 3, blocks, func(_ int, l nn.Layer) nn.Layer { return l })
	for _, offloadedBlocks := range []int{blocks / 2, blocks - 1} {
		o := b.Offloader(tensor.OffloadConfig{MinBytes: 16 << 10})
		got := train(b, 3, blocks, func(i int, l nn.Layer) nn.Layer {
			if i < offloadedBlocks {
				return offload.Layer(l, o)
			}
			return l
		})
		require.Equal(t, want.values, got.values)
		require.Equal(t, want.names, got.names)
		require.Equal(t, want.live, got.live)
		s := o.Stats()
		fell := want.peak - got.peak
		t.Logf("%d blocks: peak %d, was %d; %d of %d offloaded bytes; %d prefetched of %d", offloadedBlocks, got.peak, want.peak, fell, s.OffloadedBytes.Peak, s.Prefetched, s.Fetched)
		require.GreaterOrEqual(t, float64(fell), 0.9*float64(s.OffloadedBytes.Peak))
		require.GreaterOrEqual(t, s.OffloadedBytes.Peak, int64(offloadedBlocks*512*(16+64)*8), "what a block saves")
		require.Equal(t, s.OffloadedBytes.Allocated, s.OffloadedBytes.Freed)
		require.Equal(t, 3*s.Offloaded.Peak, s.Fetched, "each once a step")
		require.Greater(t, s.Prefetched, s.Fetched*9/10)
	}
}

// TestOffloadLabels: a value that comes back is labelled as the same activation of its module and
// step, not as a gradient.
func TestOffloadLabels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	x := tapetest.Upload(b, make([]float64, 1000))
	tape := autograd.NewTape(memcache.WithStep(b.Ctx, 9), b.RT)
	v := tape.Leaf(x)
	var h, y *autograd.Variable
	var seen []memcache.Label
	y = offload.Activations(tape, o, func() *autograd.Variable {
		return tape.Module("block", func() *autograd.Variable {
			h = tape.Tanh(v)
			return tape.Func("Twice", []*autograd.Variable{h}, func(c *autograd.Call) (*tensor.Tensor, error) {
				c.Save(h.Value())
				return c.Runtime().MulScalar(c.Context(), c.Input(0), 2)
			}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				seen = append(seen, h.Value().Block().Label())
				return c.Grads(c.Runtime().MulScalar(c.Context(), g, 2))
			})
		})
	})
	require.True(t, h.Value().Offloaded())
	seen = append(seen, h.Value().Label())
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	want := memcache.Label{Module: "block", Category: memcache.CategoryActivation, Step: 9}
	require.Equal(t, []memcache.Label{want, want}, seen)
}

// TestActivationsAfterANestedCall: activations after a nested call are moved by the outer call's
// offloader.
func TestActivationsAfterANestedCall(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	outer, inner := b.Offloader(tensor.OffloadConfig{MinBytes: 1}), b.Offloader(tensor.OffloadConfig{MinBytes: 1})
	tape := autograd.NewTape(b.Ctx, b.RT)
	y := offload.Activations(tape, outer, func() *autograd.Variable {
		x := offload.Activations(tape, inner, func() *autograd.Variable { return tape.Tanh(tape.Tanh(tape.Param(b.Parameter(100)))) })
		require.EqualValues(t, 1, inner.Stats().Offloaded.Current)
		return tape.Tanh(tape.Tanh(x))
	})
	require.EqualValues(t, 1, outer.Stats().Offloaded.Current, "what is between the last two operations")
	require.EqualValues(t, 2, inner.Stats().Offloaded.Current, "with the result of the inner call")
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
}
