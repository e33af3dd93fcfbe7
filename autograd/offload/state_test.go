package offload_test

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// stateful are optimisers with every kind of state.
var stateful = map[string]func(ps autograd.Parameters) (optim.Optimizer, error){
	"momentum": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(0.1), Momentum: 0.9, Nesterov: true}))
	},
	"Adam": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{AMSGrad: true}))
	},
	"AdamW": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewAdamW(ps, optim.AdamConfig{WeightDecay: new(0.1)}))
	},
	"RMSprop": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{Momentum: 0.5, Centered: true}))
	},
	"Adagrad": func(ps autograd.Parameters) (optim.Optimizer, error) {
		return tapetest.WithErr(optim.NewAdagrad(ps, optim.AdagradConfig{}))
	},
}

// sizes of parameters, in float64s.
var stateSizes = []int{64, 700, 64, 2000, 1500, 700}

// takeSteps updates parameters several times, some of them not in every step, and returns their
// values. between runs after each step.
func takeSteps(b *tapetest.Bench, make func(ps autograd.Parameters) (optim.Optimizer, error), prepare, between func(optim.Optimizer)) (values [][]float64) {
	b.T.Helper()
	var ps autograd.Parameters
	for i, n := range stateSizes {
		data := make64(n, float64(i))
		x, err := tensor.FromSlice(b.Ctx, b.RT, data)
		require.NoError(b.T, err)
		p, err := autograd.NewParameter(x)
		require.NoError(b.T, err)
		ps = append(ps, autograd.Named{Name: string(rune('a' + i)), Parameter: p})
	}
	opt, err := make(ps)
	require.NoError(b.T, err)
	prepare(opt)
	for step := range 5 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		var loss *autograd.Variable
		for i, p := range ps {
			if (step+i)%4 == 3 {
				continue
			}
			v := tape.Sum(tape.Square(tape.Param(p.Parameter)))
			if loss != nil {
				v = tape.Add(loss, v)
			}
			loss = v
		}
		optim.Minimize(tape, loss, opt)
		require.NoError(b.T, tape.Close())
		between(opt)
	}
	for _, p := range ps {
		values = append(values, tapetest.Read[float64](b, p.Value()))
	}
	require.NoError(b.T, opt.Close())
	require.NoError(b.T, ps.Release())
	return values
}

func make64(n int, from float64) []float64 {
	data := make([]float64, n)
	for i := range data {
		data[i] = from + float64(i%13)/13 - 0.5
	}
	return data
}

func nothing(optim.Optimizer) {}

// TestStateLowersThePeak: a step of Adam needs memory for one piece, the one that comes and the one
// that leaves, not for the whole state.
func TestStateLowersThePeak(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	const n, count = 4096, 16
	var ps autograd.Parameters
	for i := range count {
		ps = append(ps, autograd.Named{Name: string(rune('a' + i)), Parameter: b.Parameter(n)})
	}
	opt, err := tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{}))
	require.NoError(t, err)
	require.NoError(t, offload.State(b.Ctx, opt, o, 2*8*n))
	require.NoError(t, opt.Prepare(b.Ctx))
	for range 3 {
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(tape.Param(ps[0].Parameter))
		for _, p := range ps[1:] {
			loss = tape.Add(loss, tape.Sum(tape.Param(p.Parameter)))
		}
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		require.NoError(t, tape.Close())
		before := b.Cache.MemoryAllocated()
		b.Cache.ResetPeakStats()
		require.NoError(t, opt.Step(b.Ctx))
		require.Equal(t, before, b.Cache.MemoryAllocated())
		require.EqualValues(t, 2*2*8*n, b.Cache.MaxMemoryAllocated()-before, "two pieces")
		require.NoError(t, opt.ZeroGrad(b.Ctx))
	}
	require.EqualValues(t, count*2*8*n, o.Stats().OffloadedBytes.Current)
	require.NoError(t, opt.Close())
}

// TestStateWaitsForNothing: neither the host nor the updates wait for copies out.
func TestStateWaitsForNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	out := cisterntest.Stream(t, b.Dev)
	o := b.Offloader(tensor.OffloadConfig{Out: out})
	var release func()
	ctx, cancel := context.WithTimeout(b.Ctx, 20*time.Second)
	defer cancel()
	want := takeSteps(b, stateful["AdamW"], nothing, nothing)
	steps := 0
	got := takeSteps(b, stateful["AdamW"], func(opt optim.Optimizer) {
		require.NoError(t, offload.State(b.Ctx, opt, o, 1))
		require.NoError(t, opt.Prepare(b.Ctx))
		release = cisterntest.Hold(t, out)
	}, func(optim.Optimizer) {
		if steps++; steps > 1 {
			return // a fetch waits for the copy out
		}
		done, err := out.Query()
		require.NoError(t, err)
		require.False(t, done)
		release()
		require.NoError(t, b.RT.Stream().Synchronize(ctx))
	})
	require.Equal(t, want, got)
}

// TestStateInCheckpoints: state is saved from the host and loaded to its storage, with the same
// values.
func TestStateInCheckpoints(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	other := b.Offloader(tensor.OffloadConfig{})
	path := filepath.Join(t.TempDir(), "checkpoint")
	for name, make := range stateful {
		want := takeSteps(b, make, nothing, nothing)
		step := 0
		got := takeSteps(b, make, nothing, func(opt optim.Optimizer) {
			switch step++; step {
			case 1:
				require.NoError(t, offload.State(b.Ctx, opt, o, 1))
				require.NoError(t, checkpoint.Checkpoint{Optimizer: opt}.Save(b.Ctx, path))
			case 2, 3: // to another offloader, and to the device
				by := map[int]*tensor.Offloader{2: other}[step]
				require.NoError(t, offload.State(b.Ctx, opt, by, 1))
				require.Zero(t, o.Stats().Offloaded.Current)
				require.Equal(t, by != nil, other.Stats().Offloaded.Current > 0)
			case 4:
				require.NoError(t, offload.State(b.Ctx, opt, o, 1))
			}
			before := b.Bytes()
			require.NoError(t, checkpoint.Checkpoint{Optimizer: opt}.Save(b.Ctx, path))
			require.NoError(t, opt.Core().Err())
			for i := range opt.Core().Parameters() {
				for _, x := range opt.Core().State(i) {
					if x.Offloaded() {
						continue
					}
					require.NoError(t, b.RT.Zero(b.Ctx, x))
				}
			}
			if step == 4 {
				require.NoError(t, opt.Close())
			}
			require.NoError(t, checkpoint.Checkpoint{Optimizer: opt}.Load(b.Ctx, path))
			require.Equal(t, before, b.Bytes(), "step %d", step)
		})
		require.Equal(t, want, got, name)
	}
}

// TestStateFindsNoMemory: without memory for a piece no parameter of the piece is updated, the
// error has the number of updated parameters, and a later step updates the others.
func TestStateFindsNoMemory(t *testing.T) {
	b := tapetest.Open(t, 4<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	p := b.Parameter(20000)
	start := tapetest.Read[float64](b, p.Value())
	opt, err := tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: p}}, optim.AdamConfig{}))
	require.NoError(t, err)
	require.NoError(t, offload.State(b.Ctx, opt, o, 0))
	require.NoError(t, opt.Prepare(b.Ctx))
	g := tapetest.Upload(b, make64(20000, 1))
	p.SetGrad(g)
	require.NoError(t, b.RT.Synchronize(b.Ctx))
	filler := b.Fill(0)
	err = opt.Step(b.Ctx)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	require.ErrorContains(t, err, "0 of 1 parameters updated")
	require.ErrorContains(t, err, "160000 bytes that are offloaded")
	for _, f := range filler {
		require.NoError(t, f.Free())
	}
	require.Equal(t, start, tapetest.Read[float64](b, p.Value()))
	require.EqualValues(t, 2, o.Stats().Offloaded.Current)
	require.NoError(t, opt.Step(b.Ctx))
	require.NotEqual(t, start, tapetest.Read[float64](b, p.Value()))
	require.Equal(t, 1, opt.Record().Steps[0])
	require.NoError(t, opt.Close())
	p.SetGrad(nil)
}

// TestStateComesLate: with memory for only one piece the next one does not come early, and the step
// succeeds.
func TestStateComesLate(t *testing.T) {
	b := tapetest.Open(t, 4<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	ps := autograd.Parameters{{Name: "p", Parameter: b.Parameter(20000)}, {Name: "q", Parameter: b.Parameter(20000)}}
	opt, err := tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{}))
	require.NoError(t, err)
	require.NoError(t, offload.State(b.Ctx, opt, o, 1))
	require.NoError(t, opt.Prepare(b.Ctx))
	for _, p := range ps {
		p.SetGrad(tapetest.Upload(b, make64(20000, 1)))
	}
	require.NoError(t, b.RT.Synchronize(b.Ctx))
	filler := b.Fill(0)
	i := slices.IndexFunc(filler, func(block memcache.Block) bool { return block.Size() == 1<<20 })
	require.NoError(t, filler[i].Free())
	filler[i], err = b.Cache.Alloc(b.Ctx, 1<<20-400<<10, b.RT.Stream()) // the state of a parameter is 312 KiB
	require.NoError(t, err)
	require.NoError(t, opt.Step(b.Ctx))
	require.Equal(t, []int{1, 1}, opt.Record().Steps)
	require.Less(t, o.Stats().Prefetched, int64(2))
	for _, f := range filler {
		require.NoError(t, f.Free())
	}
	require.NoError(t, opt.Close())
	for _, p := range ps {
		p.SetGrad(nil)
	}
}

// TestStateFails: invalid calls return a specific error and do not change the state.
func TestStateFails(t *testing.T) {
	b, other := tapetest.Open(t, 64<<20), tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	want := takeSteps(b, stateful["Adam"], nothing, nothing)
	got := takeSteps(b, stateful["Adam"], func(opt optim.Optimizer) {
		require.ErrorIs(t, offload.State(b.Ctx, opt, other.Offloader(tensor.OffloadConfig{}), 0), autograd.ErrInvalid)
		require.ErrorContains(t, offload.State(b.Ctx, opt, o, -1), "pieces of -1 bytes")
		var none context.Context
		require.ErrorIs(t, offload.State(none, opt, o, 0), autograd.ErrInvalid)
		require.NoError(t, offload.State(b.Ctx, opt, o, 0))
	}, func(opt optim.Optimizer) {
		require.NoError(t, opt.Core().Err())
		p := opt.Core().Parameters()[3].Parameter
		ctx, cancel := context.WithCancel(b.Ctx)
		cancel()
		g, err := b.RT.Zeros(b.Ctx, tensor.Float64, stateSizes[3])
		require.NoError(t, err)
		p.SetGrad(g)
		require.ErrorIs(t, opt.Step(ctx), context.Canceled)
		require.NoError(t, opt.ZeroGrad(b.Ctx))
	})
	require.Equal(t, want, got)
}

// TestStateLeavesAfterAFailure: state that WithState has brought leaves the device again, whether
// its function fails or not.
func TestStateLeavesAfterAFailure(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	opt, err := tapetest.WithErr(optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: b.Parameter(700)}}, optim.AdamConfig{}))
	require.NoError(t, err)
	require.NoError(t, offload.State(b.Ctx, opt, b.Offloader(tensor.OffloadConfig{}), 0))
	require.NoError(t, opt.Prepare(b.Ctx))
	requireOffloaded := func(want bool) {
		for _, x := range opt.State(0) {
			require.Equal(t, want, x.Offloaded())
		}
	}
	requireOffloaded(true)
	for _, failure := range []error{nil, errors.New("a full disk")} {
		require.ErrorIs(t, opt.WithState(b.Ctx, 0, func() error { requireOffloaded(false); return failure }), failure)
		requireOffloaded(true)
	}
	require.NoError(t, opt.Close())
}
