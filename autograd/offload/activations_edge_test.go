package offload_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/device/host"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestOffloadCopiesBesideTheTapesKernels: copies run during kernels. While a kernel of the forward
// pass runs, the copy of an earlier value ends. While one of the backward pass runs, the value for
// the next backward step comes back.
func TestOffloadCopiesBesideTheTapesKernels(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	out, in := cisterntest.Stream(t, b.Dev), cisterntest.Stream(t, b.Dev)
	o := b.Offloader(tensor.OffloadConfig{Ahead: 1, Out: out, In: in})
	x := tapetest.Upload(b, []float64{0.1, 0.2, 0.3})
	ctx, cancel := context.WithTimeout(b.Ctx, 20*time.Second)
	defer cancel()
	backward := 0
	held := func(tape *autograd.Tape, v *autograd.Variable, early *tensor.Tensor) *autograd.Variable {
		return heldFunc(b, tape, v, func() {
			require.NoError(t, out.Synchronize(ctx), "the copy waits for the kernel behind it")
			done, err := b.RT.Stream().Query()
			require.NoError(t, err)
			require.False(t, done, "the kernel runs")
		}, func() {
			backward++
			require.True(t, early.Offloaded() && o.Stats().Prefetched > 0)
			require.NoError(t, in.Synchronize(ctx), "the copy waits for the kernel that it is to run beside")
			done, err := b.RT.Stream().Query()
			require.NoError(t, err)
			require.False(t, done, "the kernel runs")
		})
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	leaf := tape.Leaf(x)
	y := offload.Activations(tape, o, func() *autograd.Variable {
		h := tape.Tanh(leaf)
		v := tape.MulScalar(h, 2)
		h.Release()
		require.True(t, h.Value().Offloaded())
		return held(tape, v, h.Value())
	})
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.Equal(t, 1, backward)
	require.Equal(t, b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return t.MulScalar(t.Tanh(vs[0]), 6)
	}, []float64{0.1, 0.2, 0.3})[0], tapetest.Read[float64](b, leaf.Grad()))
	require.NoError(t, tape.Close())
}

// heldFunc multiplies v by 3. forward and backward run while a kernel of either pass is held.
func heldFunc(b *tapetest.Bench, tape *autograd.Tape, v *autograd.Variable, forward, backward func()) *autograd.Variable {
	return tape.Func("Held", []*autograd.Variable{v}, func(c *autograd.Call) (*tensor.Tensor, error) {
		release := cisterntest.Hold(b.T, b.RT.Stream())
		defer release()
		forward()
		return c.Runtime().MulScalar(c.Context(), c.Input(0), 3)
	}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		release := cisterntest.Hold(b.T, b.RT.Stream())
		defer release()
		backward()
		return c.Grads(c.Runtime().MulScalar(c.Context(), g, 3))
	})
}

// TestOffloadTrainsWhereThereIsTooLittleMemory: with offload a model trains to the same results in
// a memory limit that is too small without.
func TestOffloadTrainsWhereThereIsTooLittleMemory(t *testing.T) {
	plain := tapetest.Open(t, 256<<20)
	want := train(plain, 2, 12, func(_ int, l nn.Layer) nn.Layer { return l })
	s := stacktest.New(t, stacktest.Config{Capacity: (want.peak - plain.OwnBytes) * 2 / 3, Workspace: true})
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &tapetest.Bench{T: t, Ctx: t.Context(), Dev: s.Dev, Cache: s.Cache, RT: rt}
	t.Cleanup(func() { assert.NoError(t, rt.Close()) })
	o := b.Offloader(tensor.OffloadConfig{MinBytes: 16 << 10})
	got := train(b, 2, 12, func(_ int, l nn.Layer) nn.Layer { return offload.Layer(l, o) })
	require.Equal(t, want.values, got.values)

	in := nn.Init(b.Ctx, b.RT, nn.Seed(3), nn.Dtype(tensor.Float64))
	model := deep(in, 12, func(_ int, l nn.Layer) nn.Layer { return l })
	x, err := rt.Full(b.Ctx, 0.1, tensor.Float64, 512, 16)
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	model.Forward(tape, tape.Input(x))
	require.ErrorIs(t, tape.Close(), memcache.ErrOutOfMemory, "it is too small without")
	require.NoError(t, x.Release())
	require.NoError(t, in.Close())
}

// TestOffloadedStepsThatFailLeakNothing: nothing leaks if the n-th allocation of pinned or device
// memory fails, or the n-th copy, for every n, or if there is no memory for values to come back.
func TestOffloadedStepsThatFailLeakNothing(t *testing.T) {
	for _, fault := range []host.Fault{host.FaultAlloc, host.FaultPinned, host.FaultCopy} {
		survived := false
		for n := 1; !survived; n++ {
			require.Less(t, n, 100)
			survived = failOffload(t, fault, n)
		}
	}
}

func failOffload(t *testing.T, fault host.Fault, n int) (survived bool) {
	dev := cisterntest.Host(t, 64<<20)
	s := stacktest.New(t, stacktest.Config{Device: dev})
	s.Faulted = true
	rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
	require.NoError(t, err)
	b := &tapetest.Bench{T: t, Ctx: t.Context(), Dev: dev, Cache: s.Cache, RT: rt}
	o, err := tensor.NewOffloader(rt, tensor.OffloadConfig{MinBytes: 1})
	require.NoError(t, err)
	x, err := tensor.FromSlice(b.Ctx, rt, make([]float64, 64), 8, 8)
	require.NoError(t, err)
	require.NoError(t, rt.Synchronize(b.Ctx))
	dev.Fail(fault, n)
	tape := autograd.NewTape(b.Ctx, rt)
	_, err = tape.Backward(tape.Sum(offload.Activations(tape, o, func() *autograd.Variable {
		y := tape.Leaf(x)
		for range 4 {
			y = tape.Tanh(tape.MatMul(y, y))
		}
		return y
	})))
	if err == nil {
		err = rt.Synchronize(b.Ctx)
	}
	dev.Fail(fault, 0)
	_ = tape.Close()
	_ = x.Release()
	assert.Zero(t, o.Stats().Offloaded.Current)
	tensors, _ := rt.Live()
	assert.Zero(t, tensors)
	_ = o.Close()
	assert.Zero(t, o.Stats().PinnedBytes.Current)
	_ = rt.Close()
	assert.Zero(t, s.Cache.Stats().Allocation.All.Current)
	return err == nil
}

// TestOffloadedValuesFindNoMemory: with memory for a gradient and one value, Backward brings
// nothing ahead. With less memory its error has the missing bytes, and nothing leaks.
func TestOffloadedValuesFindNoMemory(t *testing.T) {
	b := tapetest.Open(t, 4<<20)
	o := b.Offloader(tensor.OffloadConfig{Ahead: 3})
	data := make([]float64, 10000)
	for i := range data {
		data[i] = float64(i%7) / 7
	}
	want := b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		return t.Tanh(t.Tanh(t.Tanh(vs[0])))
	}, data)
	for room := 2; room > 0; room-- {
		before := b.Live()
		x := tapetest.Upload(b, data)
		tape := autograd.NewTape(b.Ctx, b.RT)
		leaf := tape.Leaf(x)
		y := offload.Activations(tape, o, func() *autograd.Variable { return tape.Tanh(tape.Tanh(tape.Tanh(leaf))) })
		loss := tape.Sum(y)
		y.Release()
		require.EqualValues(t, 3, o.Stats().Offloaded.Current)
		require.NoError(t, b.RT.Synchronize(b.Ctx))
		var rooms []*tensor.Tensor
		for range room {
			rooms = append(rooms, tapetest.Upload(b, data))
		}
		filler := b.Fill(3)
		for _, r := range rooms {
			require.NoError(t, r.Release())
		}
		_, err := tape.Backward(loss)
		if room == 1 {
			require.ErrorIs(t, err, memcache.ErrOutOfMemory)
			require.ErrorContains(t, err, "80000 bytes that are offloaded")
		} else {
			require.NoError(t, err)
		}
		for _, f := range filler {
			require.NoError(t, f.Free())
		}
		if room > 1 {
			require.Equal(t, want[0], tapetest.Read[float64](b, leaf.Grad()))
		}
		require.Equal(t, room == 1, tape.Close() != nil)
		require.Zero(t, o.Stats().Offloaded.Current)
		require.NoError(t, x.Release())
		require.Equal(t, before, b.Live())
	}
}

// TestOffloadLeavesWhatTheProgramHolds: kept values, inputs, values that share a parameter's
// memory, and small values stay. Views that are all saved for the backward pass move together.
func TestOffloadLeavesWhatTheProgramHolds(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{MinBytes: 64})
	w := b.Parameter(4, 4)
	x := tapetest.Upload(b, make([]float64, 16), 4, 4)
	tape := autograd.NewTape(b.Ctx, b.RT)
	var kept, base, view, small *autograd.Variable
	y := offload.Activations(tape, o, func() *autograd.Variable {
		v := tape.Input(x)
		flat := tape.Reshape(tape.Param(w), 16)
		kept = tape.Tanh(tape.Mul(flat, flat)).Keep()
		base = tape.Tanh(tape.Mul(v, tape.Param(w)))
		view = tape.Reshape(base, 2, 8)
		small = tape.Tanh(tape.Sum(kept))
		y := tape.Add(tape.Sum(tape.Mul(base, base)), tape.Sum(tape.Mul(view, view)))
		return tape.Add(tape.Mul(y, small), small)
	})
	require.False(t, x.Offloaded() || w.Value().Offloaded() || kept.Value().Offloaded() || small.Value().Offloaded())
	require.True(t, base.Value().Offloaded() && view.Value().Offloaded())
	require.EqualValues(t, 1, o.Stats().Offloaded.Current, "base with its view")
	_, err := tensor.ToSlice[float64](b.Ctx, base.Value(), nil)
	require.ErrorIs(t, err, tensor.ErrOffloaded, "the program has released it")
	_, err = tape.Backward(y)
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	require.NoError(t, w.ZeroGrad(b.Ctx))
}

// TestOffloadReleases: a value moves exactly when its last reader releases it, even after
// Activations.
func TestOffloadReleases(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	x := tapetest.Upload(b, []float64{0.5, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	h := tape.Tanh(tape.Leaf(x))
	y := offload.Activations(tape, o, func() *autograd.Variable { return tape.Tanh(tape.Mul(h, h)) })
	require.False(t, h.Value().Offloaded() || y.Value().Offloaded())
	h.Release()
	require.True(t, h.Value().Offloaded(), "Mul has saved it inside")
	z := tape.Mul(y, y)
	y.Release()
	require.True(t, y.Value().Offloaded())
	remat.Checkpoint(tape, func() *autograd.Variable {
		return offload.Activations(tape, o, func() *autograd.Variable { return tape.Tanh(tape.Tanh(z)) })
	})
	require.EqualValues(t, 2, o.Stats().Offloaded.Current, "checkpoints keep nothing")
	require.NoError(t, tape.Close())
	require.Zero(t, o.Stats().Offloaded.Current, "Close releases")

	tape = autograd.NoGrad(b.Ctx, b.RT)
	require.NotNil(t, offload.Activations(tape, o, func() *autograd.Variable { return tape.Tanh(tape.Tanh(tape.Input(x))) }).Value())
	require.NoError(t, tape.Close())
	require.EqualValues(t, 2, o.Stats().Offloaded.Peak)
}

// TestOffloadOfViews: memory moves when the last of the tensors that share it is released, and not
// while the program holds one.
func TestOffloadOfViews(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	x := tapetest.Upload(b, []float64{0.5, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	leaf := tape.Leaf(x)
	y := offload.Activations(tape, o, func() *autograd.Variable {
		first, second := tape.Tanh(leaf), tape.Tanh(leaf)
		of, also := tape.Reshape(first, 2, 1), tape.Reshape(second, 2, 1)
		of.Release()
		require.False(t, first.Value().Offloaded(), "the program holds it")
		second.Release()
		require.False(t, second.Value().Offloaded(), "the program holds a view of it")
		sum := tape.Add(tape.Sum(also), tape.Sum(first))
		also.Release()
		require.True(t, second.Value().Offloaded())
		return sum
	})
	behind := tape.Tanh(y)
	z := tape.Mul(behind, behind)
	behind.Release()
	require.False(t, behind.Value().Offloaded(), "it is saved behind the Offload")
	_, err := tape.Backward(tape.Sum(z))
	require.NoError(t, err)
	want := b.Grads(func(t *autograd.Tape, vs []*autograd.Variable) *autograd.Variable {
		h := t.Tanh(t.Add(t.Sum(t.Tanh(vs[0])), t.Sum(t.Tanh(vs[0]))))
		return t.Mul(h, h)
	}, []float64{0.5, 2})
	require.Equal(t, want[0], tapetest.Read[float64](b, leaf.Grad()))
	require.NoError(t, tape.Close())
}

// TestOffloadOfAFunctionOfItsOwn: tensors that a program's own operation saves move at once.
func TestOffloadOfAFunctionOfItsOwn(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	x := tapetest.Upload(b, []float64{1, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	var saved *tensor.Tensor
	y := offload.Activations(tape, o, func() *autograd.Variable {
		return tape.Func("Cube", []*autograd.Variable{v}, func(c *autograd.Call) (y *tensor.Tensor, err error) {
			if saved, err = c.Runtime().Square(c.Context(), c.Input(0)); err != nil {
				return nil, err
			}
			c.Save(saved)
			return c.Runtime().Mul(c.Context(), saved, c.Input(0))
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			return c.Grads(c.Runtime().Mul(c.Context(), g, c.Saved()[0]))
		})
	})
	require.True(t, saved.Offloaded())
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.True(t, saved.Released())
	require.Equal(t, []float64{1, 4}, tapetest.Read[float64](b, v.Grad()))
	require.NoError(t, tape.Close())
}

// TestOffloadRefuses: invalid calls are errors of the tape.
func TestOffloadRefuses(t *testing.T) {
	b, other := tapetest.Open(t, 64<<20), tapetest.Open(t, 64<<20)
	o := b.Offloader(tensor.OffloadConfig{})
	x := tapetest.Upload(b, []float64{0.5, 2})
	identity := func(v *autograd.Variable) func() *autograd.Variable { return func() *autograd.Variable { return v } }
	for what, c := range map[string]struct {
		f    func(*autograd.Tape, *autograd.Variable) *autograd.Variable
		want string
	}{
		"function": {func(t *autograd.Tape, v *autograd.Variable) *autograd.Variable {
			return offload.Activations(t, o, nil)
		}, "the function is nil"},
		"offloader": {func(t *autograd.Tape, v *autograd.Variable) *autograd.Variable {
			return offload.Activations(t, nil, identity(v))
		}, "the offloader is nil"},
		"result": {func(t *autograd.Tape, v *autograd.Variable) *autograd.Variable {
			return offload.Activations(t, o, identity(nil))
		}, "returned nil"},
		"layer": {func(t *autograd.Tape, v *autograd.Variable) *autograd.Variable {
			return offload.Layer(nil, o).Forward(t, v)
		}, "the layer is nil"},
		"runtime": {func(t *autograd.Tape, v *autograd.Variable) *autograd.Variable {
			return offload.Activations(t, other.Offloader(tensor.OffloadConfig{}), identity(v))
		}, "another runtime"},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		c.f(tape, tape.Leaf(x))
		err := tape.Close()
		require.ErrorIs(t, err, autograd.ErrInvalid, what)
		require.ErrorContains(t, err, c.want, what)
	}
	require.Nil(t, offload.Layer(nil, o).Parameters())

	ctx, cancel := context.WithCancel(b.Ctx)
	tape := autograd.NewTape(ctx, b.RT)
	offload.Activations(tape, o, func() *autograd.Variable { defer cancel(); return tape.Sum(tape.Tanh(tape.Tanh(tape.Leaf(x)))) })
	require.ErrorIs(t, tape.Close(), context.Canceled)
	require.Zero(t, o.Stats().Offloaded.Current)
	require.NoError(t, o.Close())
	tape = autograd.NewTape(b.Ctx, b.RT)
	offload.Activations(tape, o, func() *autograd.Variable { return tape.Sum(tape.Tanh(tape.Tanh(tape.Leaf(x)))) })
	require.ErrorIs(t, tape.Close(), tensor.ErrClosed)
}
