package autograd_test

import (
	"errors"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/stacktest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestAResetTapeHasNoSettings: steps that compute in bfloat16, drop, offload, checkpoint or update
// in the backward pass, in random order, train as on new tapes. No setting lasts to the next step.
func TestAResetTapeHasNoSettings(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	train := func(reset bool) (params [][]float32) {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
		first, second := in.Linear(64, 64), in.Linear(64, 4)
		named := nn.ParametersOf(nn.Sequential{first, second})
		opt := nn.Own(in, optim.NewAdamW(named, optim.AdamConfig{LR: new(0.01)}))
		off, err := tensor.NewOffloader(b.RT, tensor.OffloadConfig{})
		require.NoError(t, errors.Join(err, in.Err()))
		x, y := tapetest.Upload(b, numbers(512*64), 512, 64), tapetest.Upload(b, make([]int32, 512), 512)
		random := rand.New(rand.NewPCG(7, 8))
		tape := autograd.NewTape(b.Ctx, b.RT)
		for range tapetest.Rounds(40, 20) {
			half, drops, offloads, checkpoints, inBackward := random.IntN(3) == 0, random.IntN(2) == 0, random.IntN(3) == 0, random.IntN(3) == 0, random.IntN(3) == 0
			assert.Equal(t, tensor.Float32, tape.ComputeDtype())
			assert.Empty(t, autograd.HooksOf(tape))
			assert.False(t, autograd.Seeded(tape))
			if half {
				tape.SetComputeDtype(tensor.BFloat16)
			}
			tape.SetSeed(random.Uint64())
			body := func() *autograd.Variable {
				h := tape.ReLU(first.Forward(tape, tape.Input(x)))
				if drops {
					h = tape.Dropout(h, 0.5)
				}
				return tape.Tanh(h)
			}
			var h *autograd.Variable
			switch {
			case offloads:
				h = offload.Activations(tape, off, body)
			case checkpoints:
				h = remat.Checkpoint(tape, body)
			default:
				h = body()
			}
			loss := tape.CrossEntropy(second.Forward(tape, h), y)
			if inBackward {
				optim.InBackward(tape, loss, opt, 0)
			} else {
				optim.Minimize(tape, loss, opt)
			}
			if reset {
				require.NoError(t, tape.Reset(b.Ctx))
			} else {
				require.NoError(t, tape.Close())
				tape = autograd.NewTape(b.Ctx, b.RT)
			}
		}
		for _, p := range named {
			params = append(params, tapetest.Read[float32](b, p.Value()))
		}
		assert.Positive(t, off.Stats().Fetched)
		require.NoError(t, errors.Join(opt.ZeroGrad(b.Ctx), tape.Close(), x.Release(), y.Release(), off.Close(), in.Close()))
		n, _ := b.RT.Live()
		require.Zero(t, n)
		return params
	}
	require.Equal(t, train(false), train(true))
}

// TestCloseInABackwardFunction ends the pass, and the tape, without a panic; Reset makes it ready
// again.
func TestCloseInABackwardFunction(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	for range 3 {
		v := tape.Exp(tape.Exp(tape.Leaf(x)))
		y := tape.Func("own", []*autograd.Variable{v}, func(c *autograd.Call) (*tensor.Tensor, error) { return b.RT.Exp(c.Context(), c.Input(0)) },
			func(*autograd.Call, *tensor.Tensor) ([]*tensor.Tensor, error) { return nil, tape.Close() })
		_, _ = tape.Backward(tape.Sum(y))
		require.NoError(t, tape.Reset(b.Ctx))
		require.Equal(t, int64(1), b.Live())
	}
	require.NoError(t, errors.Join(tape.Close(), x.Release()))
}

// TestSizesOfAResetTape: the next tape expects the numbers of the last two steps of a tape that was
// reset.
func TestSizesOfAResetTape(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1}, 1)
	tape := autograd.NewTape(b.Ctx, b.RT)
	for range 2 {
		for range 40 {
			tape.Neg(tape.Input(x))
		}
		require.NoError(t, tape.Reset(b.Ctx))
	}
	variables, tensors := autograd.ExpectedOf(tape)
	assert.Equal(t, 80, variables)
	assert.Equal(t, 80, tensors)
	require.NoError(t, errors.Join(tape.Close(), x.Release()))
}

// TestRuntimeCloseBesideAResetTape: steps on a tape that is reset end with an error when the
// runtime is closed beside them, wherever they are, and all is freed.
func TestRuntimeCloseBesideAResetTape(t *testing.T) {
	for i := range tapetest.Rounds(60, 15) {
		s := stacktest.New(t, stacktest.Config{Capacity: 64 << 20, Workspace: true})
		rt, err := tensor.NewRuntime(s.Cache, s.Pool, s.Stream)
		require.NoError(t, err)
		w := &tapetest.Bench{T: t, Ctx: t.Context(), Dev: s.Dev, Cache: s.Cache, RT: rt}
		in := nn.Init(w.Ctx, rt, nn.Seed(1))
		model := nn.Sequential{in.Linear(8, 8), nn.ReLU{}, in.Linear(8, 4)}
		opt := nn.Own(in, optim.NewAdamW(nn.ParametersOf(model), optim.AdamConfig{}))
		x := tapetest.Upload(w, numbers(16*8), 16, 8)
		y := tapetest.Upload(w, make([]int32, 16), 16)
		require.NoError(t, in.Err())
		var steps atomic.Int32
		done := make(chan error)
		go func() {
			tape := autograd.NewTape(w.Ctx, rt)
			for {
				optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), opt)
				if err := tape.Reset(w.Ctx); err != nil {
					done <- errors.Join(err, tape.Close())
					return
				}
				steps.Add(1)
			}
		}()
		for steps.Load() < 4 {
			time.Sleep(10 * time.Microsecond)
		}
		time.Sleep(time.Duration(i*37%200) * time.Microsecond)
		require.ErrorIs(t, rt.Close(), tensor.ErrLeaked)
		require.Error(t, <-done)
		require.Zero(t, s.Cache.Stats().Allocation.All.Current)
	}
}
