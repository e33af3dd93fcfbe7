package offload_test

import (
	"context"
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/checkpoint"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestParametersInLittleMemory: with memory for one layer no group comes early, and a group that
// has come early leaves if another one is needed. With less memory the error has the missing bytes,
// and nothing leaks.
func TestParametersInLittleMemory(t *testing.T) {
	b := tapetest.Open(t, 4<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	in, model := wide(b, 4, func(ps autograd.Parameters) { require.NoError(t, offload.Parameters(b.Ctx, ps, o)) })
	x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
	want := infer(b, model, x, false)
	for _, c := range []struct {
		layers, small int
		early         bool
	}{{2, 4, true}, {2, 0, true}, {1, 4, false}, {0, 4, false}} {
		require.NoError(t, b.RT.Synchronize(b.Ctx))
		var rooms []*tensor.Tensor
		for range c.layers {
			room, err := b.RT.New(b.Ctx, tensor.Float32, wideWidth, wideWidth)
			require.NoError(t, err)
			rooms = append(rooms, room)
		}
		filler := b.Fill(c.small)
		for _, r := range rooms {
			require.NoError(t, r.Release())
		}
		before := o.Stats()
		if c.layers > 0 {
			require.Equal(t, want, infer(b, model, x, false))
			require.Equal(t, c.early, o.Stats().Prefetched > before.Prefetched, "%+v", c)
		} else {
			live := b.Live()
			tape := autograd.NoGrad(b.Ctx, b.RT)
			model.Forward(tape, tape.Input(x))
			err := tape.Close()
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
			require.ErrorContains(t, err, "device memory for 65536 bytes that are offloaded")
			require.Equal(t, live, b.Live())
		}
		for _, f := range filler {
			require.NoError(t, f.Free())
		}
	}
	require.Equal(t, want, infer(b, model, x, false))
	require.NoError(t, in.Close())
}

// TestParametersWithinABudget: parameters without pinned memory stay on the device, and the results
// are the same.
func TestParametersWithinABudget(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in, model := wide(b, 4, func(autograd.Parameters) {})
	x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
	want := infer(b, model, x, false)
	require.NoError(t, in.Close())
	for _, layers := range []int64{1, 3} {
		o := b.Offloader(tensor.OffloadConfig{MaxBytes: layers * wideLayer})
		in, model := wide(b, 4, func(ps autograd.Parameters) { require.NoError(t, offload.Parameters(b.Ctx, ps, o)) })
		x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
		for range 2 {
			require.Equal(t, want, infer(b, model, x, false))
		}
		require.Equal(t, layers*wideLayer, o.Stats().OffloadedBytes.Current)
		require.Positive(t, o.Stats().Stayed)
		require.NoError(t, in.Close())
	}
}

// TestParametersFailAndLeakNothing: nothing leaks if the n-th allocation of pinned or device memory
// fails, or the n-th copy, for every n, and a retry has the same results.
func TestParametersFailAndLeakNothing(t *testing.T) {
	for _, fault := range []host.Fault{host.FaultAlloc, host.FaultPinned, host.FaultCopy} {
		survived := false
		for n := 1; !survived; n++ {
			require.Less(t, n, 200)
			survived = failParameters(t, fault, n)
		}
	}
}

func failParameters(t *testing.T, fault host.Fault, n int) (survived bool) {
	dev := cisterntest.Host(t, 64<<20)
	s := stacktest.New(t, stacktest.Config{Device: dev})
	s.Faulted = true
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &tapetest.Bench{T: t, Ctx: t.Context(), Dev: dev, Cache: s.Cache, RT: rt}
	o, err := tensor.NewOffloader(rt, tensor.OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	in, model := wide(b, 3, func(autograd.Parameters) {})
	opt, err := tapetest.WithErr(optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	require.NoError(t, err)
	x, err := tensor.FromSlice(b.Ctx, rt, make([]float32, wideWidth), 1, wideWidth)
	require.NoError(t, err)
	require.NoError(t, rt.Synchronize(b.Ctx))
	step := func() error {
		tape := autograd.NewTape(b.Ctx, rt)
		tape.SetComputeDtype(tensor.BFloat16)
		optim.Minimize(tape, tape.Mean(model.Forward(tape, tape.Input(x))), opt)
		return errors.Join(tape.Close(), opt.ZeroGrad(b.Ctx))
	}
	dev.Fail(fault, n)
	for _, l := range model {
		err = errors.Join(err, offload.Parameters(b.Ctx, l.Parameters(), o))
	}
	err = errors.Join(err, offload.State(b.Ctx, opt, o, 1), step(), step())
	if err == nil {
		err = rt.Synchronize(b.Ctx)
	}
	dev.Fail(fault, 0)
	if fault != host.FaultCopy { // a failed copy ends the stream
		assert.NoError(t, step(), "fault %v, %d", fault, n)
	}
	_ = opt.Close()
	_ = in.Close()
	_ = x.Release()
	assert.Zero(t, o.Stats().Offloaded.Current)
	tensors, _ := rt.Live()
	assert.Zero(t, tensors, "fault %v, %d", fault, n)
	_ = o.Close()
	assert.Zero(t, o.Stats().PinnedBytes.Current)
	_ = rt.Close()
	assert.Zero(t, s.Cache.Stats().Allocation.All.Current)
	return err == nil
}

// TestParametersAndTheirValues: an operation on a parameter on the host is an error, the program
// can bring the parameter, and the next tape moves it back, unless a view holds it.
func TestParametersAndTheirValues(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	ps := offloadedGroups(b, o, 2)
	x := tapetest.Upload(b, []float64{1, 1, 1})
	use := func(p *autograd.Parameter) {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		require.NotNil(t, tape.Mul(tape.Input(x), tape.Param(p)).Value())
		require.NoError(t, tape.Close())
	}
	v := ps[0].Value()
	_, err := tensor.ToSlice[float64](b.Ctx, v, nil)
	require.ErrorIs(t, err, tensor.ErrOffloaded)
	require.NoError(t, o.Fetch(b.Ctx, v))
	require.Equal(t, []float64{1, 2, 3}, tapetest.Read[float64](b, v))
	use(ps[1])
	require.False(t, v.Offloaded(), "no tape has used it")
	require.NoError(t, b.RT.MulScalarInPlace(b.Ctx, v, 2))
	use(ps[0])
	require.True(t, v.Offloaded())
	require.NoError(t, o.Fetch(b.Ctx, v))
	require.Equal(t, []float64{2, 4, 6}, tapetest.Read[float64](b, v), "what the program has written")
	view, err := b.RT.Share(b.Ctx, v)
	require.NoError(t, err)
	use(ps[0])
	require.False(t, v.Offloaded(), "the program holds a view")
	require.NoError(t, view.Release())
	use(ps[0])
	require.True(t, v.Offloaded())

	tape := autograd.NewTape(b.Ctx, b.RT) // a view on the tape also holds it
	flat := tape.Reshape(tape.Param(ps[0]), 3)
	y := tape.Mul(flat, tape.Param(ps[1]))
	require.False(t, v.Offloaded())
	_, err = tape.Backward(tape.Sum(tape.Mul(y, flat)))
	require.NoError(t, err)
	require.True(t, v.Offloaded())
	require.Equal(t, []float64{4, 16, 36}, tapetest.Read[float64](b, ps[0].Grad()))
	require.NoError(t, tape.Close())

	require.NoError(t, ps[1].ReleaseContext(b.Ctx))
	use(ps[0])
}

// TestParametersInFiles: a model's parameters are saved from the host and loaded to the host.
func TestParametersInFiles(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	in, model := wide(b, 3, func(ps autograd.Parameters) { require.NoError(t, offload.Parameters(b.Ctx, ps, o)) })
	x := in.Tensor(make([]float64, wideWidth), 1, wideWidth)
	opt, err := tapetest.WithErr(optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.1)}))
	require.NoError(t, err)
	step := func() (loss float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		l := tape.Mean(tape.Square(tape.AddScalar(model.Forward(tape, tape.Input(x)), -1)))
		optim.Minimize(tape, l, opt)
		loss = l.Item()
		require.NoError(t, tape.Close())
		return loss
	}
	step()
	path, plain := filepath.Join(t.TempDir(), "checkpoint"), filepath.Join(t.TempDir(), "model")
	require.NoError(t, checkpoint.Checkpoint{Model: model, Optimizer: opt}.Save(b.Ctx, path))
	require.NoError(t, nn.SaveModel(b.Ctx, model, plain))
	want := [2]float64{step(), step()}
	away := o.Stats().Offloaded.Current
	require.NoError(t, checkpoint.Checkpoint{Model: model, Optimizer: opt}.Load(b.Ctx, path))
	require.Equal(t, away, o.Stats().Offloaded.Current)
	require.Equal(t, want, [2]float64{step(), step()})
	require.NoError(t, nn.LoadModel(b.Ctx, model, plain))
	require.Equal(t, want[0], step())
	require.NoError(t, opt.Close())
	require.NoError(t, in.Close())
}

// TestParametersMove: parameters move between groups and offloaders and back, and a refused call
// moves none.
func TestParametersMove(t *testing.T) {
	b, other := tapetest.Open(t, 64<<20), tapetest.Open(t, 64<<20)
	o, second := b.Offloader(tensor.OffloadConfig{}), b.Offloader(tensor.OffloadConfig{})
	p := b.Parameter(3)
	twice := autograd.Parameters{{Name: "p", Parameter: p}, {Name: "also p", Parameter: p}}
	var none context.Context
	require.ErrorIs(t, offload.Parameters(none, twice, o), autograd.ErrInvalid)
	require.ErrorContains(t, offload.Parameters(b.Ctx, append(twice, autograd.Named{Name: "nil", Parameter: nil}), o), `parameter "nil"`)
	require.ErrorContains(t, offload.Parameters(b.Ctx, twice, other.Offloader(tensor.OffloadConfig{})), "another runtime")
	require.False(t, p.Value().Offloaded())
	require.Nil(t, offload.GroupOf(p))

	require.NoError(t, offload.Parameters(b.Ctx, twice, o))
	require.Equal(t, []*autograd.Parameter{p}, offload.GroupOf(p).Members())
	was := offload.GroupOf(p)
	require.NoError(t, offload.Parameters(b.Ctx, twice, o))
	require.Empty(t, was.Members())
	require.NoError(t, offload.Parameters(b.Ctx, twice, second))
	require.Zero(t, o.Stats().Offloaded.Current)
	require.EqualValues(t, 1, second.Stats().Offloaded.Current)
	ctx, cancel := context.WithCancel(b.Ctx)
	cancel()
	require.Error(t, offload.Parameters(ctx, twice, nil))
	require.True(t, p.Value().Offloaded())
	require.NoError(t, offload.Parameters(b.Ctx, twice, nil))
	require.NoError(t, offload.Parameters(b.Ctx, twice, nil))
	require.Equal(t, []float64{1, 2, 3}, tapetest.Read[float64](b, p.Value()))
	require.NoError(t, second.Close())
	require.Zero(t, second.Stats().PinnedBytes.Current, "nothing is kept for a parameter that is back")

	require.NoError(t, offload.Parameters(b.Ctx, twice, o))
	tape := autograd.NewTape(b.Ctx, b.RT)
	loss := tape.Sum(tape.Square(tape.Param(p)))
	require.NoError(t, o.Close())
	_, err := tape.Backward(loss) // it still exists
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	require.False(t, p.Value().Offloaded(), "the offloader takes nothing any more")
	require.NoError(t, offload.Parameters(b.Ctx, twice, nil))
	third := b.Offloader(tensor.OffloadConfig{})
	require.NoError(t, offload.Parameters(b.Ctx, twice, third))
	require.NoError(t, third.Close())
	tape = autograd.NewTape(b.Ctx, b.RT)
	tape.Square(tape.Param(p))
	require.ErrorIs(t, tape.Close(), tensor.ErrClosed)
	require.ErrorIs(t, offload.Parameters(b.Ctx, twice, nil), tensor.ErrClosed)
	require.NoError(t, p.Release())
}

// TestParametersRefuseCaptures: the error has the alternative.
func TestParametersRefuseCaptures(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	p, free := offloadedGroups(b, o, 1)[0], b.Parameter(3)
	sgd, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{}))
	require.NoError(t, err)
	g := tapetest.Upload(b, []float64{1, 1, 1})
	for what, f := range map[string]func(context.Context) error{
		"an operation on an offloaded parameter": func(ctx context.Context) error {
			tape := autograd.NewTape(ctx, b.RT)
			tape.Square(tape.Param(p))
			return tape.Close()
		},
		"a step of offloaded parameters": func(ctx context.Context) error {
			p.SetGrad(g)
			defer func() { p.SetGrad(nil) }()
			return sgd.Step(ctx)
		},
		"offload.Parameters": func(ctx context.Context) error {
			return offload.Parameters(ctx, autograd.Parameters{{Name: "free", Parameter: free}}, o)
		},
	} {
		_, err := b.RT.Capture(b.Ctx, f)
		require.ErrorIs(t, err, tensor.ErrCapturing, what)
		require.ErrorContains(t, err, what)
		require.ErrorContains(t, err, "before the capture")
	}
	require.True(t, p.Value().Offloaded())
	require.False(t, free.Value().Offloaded())
}
