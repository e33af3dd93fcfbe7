package autograd

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

func (b *bench) offloader(cfg tensor.OffloadConfig) *tensor.Offloader {
	b.t.Helper()
	if cfg.MinBytes == 0 {
		cfg.MinBytes = 1
	}
	o, err := tensor.NewOffloader(b.rt, cfg)
	require.NoError(b.t, err)
	b.t.Cleanup(func() {
		assert.Zero(b.t, o.Stats().Offloaded.Current, "offloaded tensors")
		assert.NoError(b.t, o.Close())
		assert.Zero(b.t, o.Stats().PinnedBytes.Current)
	})
	return o
}

// TestOffloadOfRandomPrograms: loss and gradients are those of the same program in frames, bit for bit, with checkpoints around and inside,
// with every depth of prefetching, and with pinned memory for some of it only; and nothing is left.
func TestOffloadOfRandomPrograms(t *testing.T) {
	b := open(t, 64<<20)
	w := b.parameter(2, 2)
	random := rand.New(rand.NewPCG(3, 14))
	offloaders := []*tensor.Offloader{b.offloader(tensor.OffloadConfig{}), b.offloader(tensor.OffloadConfig{Ahead: -1}),
		b.offloader(tensor.OffloadConfig{Ahead: 5}), b.offloader(tensor.OffloadConfig{MaxBytes: 3 * 512})}
	before := b.live()
	for seed := range uint64(rounds(100, 18)) {
		p := randomPart(random, 3)
		data := make([]float64, 8)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		run := func(apart func(*Tape, func() *Variable) *Variable) (all [][]float64) {
			tape := NewTape(b.ctx, b.rt)
			tape.SetSeed(seed)
			var leaves []*Variable
			for i := range 2 {
				x, err := tensor.FromSlice(b.ctx, b.rt, data[4*i:4*i+4], 2, 2)
				require.NoError(t, err)
				leaves = append(leaves, tape.Leaf(x))
				require.NoError(t, x.Release())
			}
			y := apart(tape, func() *Variable { return p.run(tape, leaves, w, apart) })
			loss := tape.Sum(tape.Mul(y, tape.Param(w)))
			_, err := tape.Backward(loss)
			require.NoError(t, err, "seed %d", seed)
			all = append(all, read[float64](b, loss.Value()))
			for _, l := range leaves {
				if l.Grad() != nil {
					all = append(all, read[float64](b, l.Grad()))
				}
			}
			all = append(all, read[float64](b, w.Grad()))
			require.NoError(t, w.ZeroGrad(b.ctx))
			require.NoError(t, tape.Close())
			require.Equal(t, before, b.live())
			return all
		}
		want := run((*Tape).Frame)
		for i, o := range offloaders {
			offload := func(t *Tape, f func() *Variable) *Variable { return t.Offload(o, f) }
			require.Equal(t, want, run(offload), "seed %d, offloader %d", seed, i)
			require.Equal(t, want, run(func(t *Tape, f func() *Variable) *Variable {
				return offload(t, func() *Variable { return t.Checkpoint(f) })
			}), "seed %d, offloader %d, checkpoints inside", seed, i)
			require.Equal(t, want, run(func(t *Tape, f func() *Variable) *Variable {
				return t.Checkpoint(func() *Variable { return offload(t, f) })
			}), "seed %d, offloader %d, checkpoints around", seed, i)
			require.Zero(t, o.Stats().Offloaded.Current)
		}
	}
	for i, o := range offloaders {
		s := o.Stats()
		t.Logf("offloader %d: %+v", i, s)
		require.Greater(t, s.Fetched, int64(rounds(40, 0)))
		require.Equal(t, i != 1, s.Prefetched > 0)
		require.Equal(t, i == 3, s.Stayed > 0)
	}
	require.LessOrEqual(t, offloaders[3].Stats().PinnedBytes.Peak, int64(3*512))
}

// TestOffloadOfProgramsThatReleaseEarly: values that are released in any order, views of them, and what two operations have saved.
func TestOffloadOfProgramsThatReleaseEarly(t *testing.T) {
	b := open(t, 64<<20)
	o := b.offloader(tensor.OffloadConfig{})
	random := rand.New(rand.NewPCG(21, 22))
	programs := rounds(60, 20)
	for range programs {
		p := randomProgram(random, 3, 14)
		data := make([]float64, 12)
		for i := range data {
			data[i] = random.NormFloat64()
		}
		run := func(offload, early bool) (loss float64, grads [][]float64) {
			tape := NewTape(b.ctx, b.rt)
			var leaves []*Variable
			for i := range 3 {
				leaves = append(leaves, tape.Leaf(upload(b, data[4*i:4*i+4], 2, 2)))
			}
			f := func() *Variable { return p.run(tape, leaves, early) }
			apart := tape.Frame
			if offload {
				apart = func(f func() *Variable) *Variable { return tape.Offload(o, f) }
			}
			value, err := tape.Backward(apart(f))
			require.NoError(t, err)
			for _, l := range leaves {
				if l.Grad() != nil {
					grads = append(grads, read[float64](b, l.Grad()))
				}
			}
			loss, err = tensor.Item[float64](b.ctx, value)
			require.NoError(t, err)
			require.NoError(t, tape.Close())
			return loss, grads
		}
		loss, grads := run(false, false)
		for _, early := range []bool{false, true} {
			got, same := run(true, early)
			require.Equal(t, loss, got)
			require.Equal(t, grads, same)
		}
	}
	require.Greater(t, o.Stats().Fetched, int64(5*programs))
}

// deep is a model of blocks whose activations are far larger than its parameters.
func deep(in *Initializer, blocks int, wrap func(int, Layer) Layer) (s Sequential) {
	for i := range blocks {
		s = append(s, wrap(i, Sequential{in.LayerNorm(16), in.Linear(16, 64), GELU{}, in.Linear(64, 16), &Dropout{P: 0.1}}))
	}
	return s
}

type trained struct {
	values     [][]float64
	names      []string
	peak, live int64
}

// train runs steps of a model of blocks, some of which are wrapped.
func (b *bench) train(steps, blocks int, wrap func(int, Layer) Layer) (got trained) {
	b.t.Helper()
	in := Init(b.ctx, b.rt, Seed(3), Dtype(tensor.Float64))
	model := deep(in, blocks, wrap)
	opt := in.Adam(model.Parameters(), AdamConfig{})
	data := make([]float64, 512*16)
	for i := range data {
		data[i] = float64(i*29%31)/31 - 0.4
	}
	x := in.Tensor(data, 512, 16)
	require.NoError(b.t, in.Err())
	require.NoError(b.t, opt.Prepare(b.ctx))
	for i, tape := range in.Steps(steps) {
		b.cache.ResetPeakStats()
		y := model.Forward(tape, tape.Input(x))
		loss := tape.Mean(tape.Mul(y, y))
		y.Release()
		tape.Minimize(loss, opt)
		got.values = append(got.values, []float64{loss.Item()})
		require.NoError(b.t, tape.Err(), "step %d", i)
		got.peak = b.cache.MaxMemoryAllocated()
		require.NoError(b.t, tape.Close())
		live := b.live()
		require.True(b.t, i == 0 || live == got.live, "step %d: %d blocks, and %d before", i, live, got.live)
		got.live = live
	}
	for _, p := range model.Parameters() {
		got.names = append(got.names, p.Name)
		got.values = append(got.values, read[float64](b, p.Value()))
	}
	require.NoError(b.t, in.Close())
	return got
}

// TestOffloadLowersThePeak: models train as without, to the bit and under the same names, and the peak of allocated memory
// falls by the bytes that were offloaded, of half of the blocks and of all but the last.
func TestOffloadLowersThePeak(t *testing.T) {
	b := open(t, 256<<20)
	blocks := rounds(12, 8)
	want := b.train(3, blocks, func(_ int, l Layer) Layer { return l })
	for _, offloadedBlocks := range []int{blocks / 2, blocks - 1} {
		o := b.offloader(tensor.OffloadConfig{MinBytes: 16 << 10})
		got := b.train(3, blocks, func(i int, l Layer) Layer {
			if i < offloadedBlocks {
				return Offloaded(l, o)
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

// TestOffloadOverManySteps: memory on both sides is that of the first steps.
func TestOffloadOverManySteps(t *testing.T) {
	b := open(t, 256<<20)
	o := b.offloader(tensor.OffloadConfig{})
	pool := b.rt.Pool()
	var active int64
	wrap := func(_ int, l Layer) Layer { return Offloaded(l, o) }
	for range 3 {
		b.train(rounds(8, 3), 4, wrap)
		s := o.Stats()
		require.Zero(t, s.Offloaded.Current)
		require.True(t, active == 0 || s.PinnedBytes.Peak == active, "%d bytes pinned, and %d before", s.PinnedBytes.Peak, active)
		active = s.PinnedBytes.Peak
		require.Equal(t, active, s.PinnedBytes.Current, "buffers are kept")
	}
	require.GreaterOrEqual(t, pool.Stats().ActiveBytes.Current, active)
	require.NoError(t, o.Close())
	require.Zero(t, o.Stats().PinnedBytes.Current)
	require.NoError(t, pool.EmptyCache(b.ctx))
	require.Zero(t, pool.Stats().ActiveBytes.Current, "buffers were given back")
}

// TestOffloadLabels: what comes back is the activation of its module and step that it was, and not a gradient.
func TestOffloadLabels(t *testing.T) {
	b := open(t, 64<<20)
	o := b.offloader(tensor.OffloadConfig{})
	x := upload(b, make([]float64, 1000))
	tape := NewTape(memcache.WithStep(b.ctx, 9), b.rt)
	v := tape.Leaf(x)
	var h, y *Variable
	var seen []memcache.Label
	y = tape.Offload(o, func() *Variable {
		return tape.Module("block", func() *Variable {
			h = tape.Tanh(v)
			return tape.Func("Twice", []*Variable{h}, func(c *Call) (*tensor.Tensor, error) {
				c.Save(h.Value())
				return c.Runtime().MulScalar(c.Context(), c.Input(0), 2)
			}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
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
