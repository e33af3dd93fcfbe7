package autograd

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// TestBFloat16ActivationCheckpointsAndOffload: of random programs that read a parameter in many places, losses and gradients are the same to the bit,
// however their parts are computed, and nothing is left.
func TestBFloat16ActivationCheckpointsAndOffload(t *testing.T) {
	b := open(t, 64<<20)
	w := b.master([]float32{1, 2, 3, 4}, 2, 2)
	random := rand.New(rand.NewPCG(16, 11))
	o := b.offloader(tensor.OffloadConfig{})
	before := b.live()
	programs := 60
	if testing.Short() {
		programs = 15
	}
	wide := 0
	for seed := range uint64(programs) {
		p := randomPart(random, 3)
		data := make([]float32, 8)
		for i := range data {
			data[i] = float32(random.NormFloat64())
		}
		run := func(apart func(*Tape, func() *Variable) *Variable) (all [][]float32) {
			tape := b.halfTape()
			tape.SetSeed(seed)
			var leaves []*Variable
			for i := range 2 {
				x, err := tensor.FromSlice(b.ctx, b.rt, data[4*i:4*i+4], 2, 2)
				require.NoError(t, err)
				leaves = append(leaves, tape.Leaf(x))
				require.NoError(t, x.Release())
			}
			y := apart(tape, func() *Variable { return p.run(tape, leaves, w, apart) })
			y = tape.Mul(y, tape.Param(w))
			tape.SetComputeDtype(tensor.Float32) // after which checkpoints run in bfloat16 again
			loss := tape.Sum(tape.Cast(y, tensor.Float32))
			_, err := tape.Backward(loss)
			require.NoError(t, err, "seed %d", seed)
			all = append(all, b.floats(loss.Value()))
			for _, l := range leaves {
				if l.Grad() != nil {
					all = append(all, b.floats(l.Grad()))
				}
			}
			if g := w.Grad(); g != nil {
				all = append(all, b.floats(g))
				if g.Dtype() == tensor.Float32 {
					wide++
				}
			}
			require.NoError(t, w.ZeroGrad(b.ctx))
			require.NoError(t, tape.Close())
			require.Equal(t, before, b.live())
			return all
		}
		want := run((*Tape).Frame)
		offload := func(t *Tape, f func() *Variable) *Variable { return t.Offload(o, f) }
		require.Equal(t, want, run((*Tape).Checkpoint), "seed %d, checkpoints", seed)
		require.Equal(t, want, run(offload), "seed %d, offloaded", seed)
		require.Equal(t, want, run(func(t *Tape, f func() *Variable) *Variable {
			return offload(t, func() *Variable { return t.Checkpoint(f) })
		}), "seed %d, both", seed)
	}
	require.Positive(t, wide, "parameters that are read more than once")
}

// TestBFloat16Checkpoint: a training that goes on from a file ends as one that never stopped, to the bit, as the masters are in the file.
func TestBFloat16Checkpoint(t *testing.T) { checkCheckpoint(t, ComputeDtype(tensor.BFloat16)) }

// TestBFloat16Parallel: ranks reduce float32 gradients, of whatever is sharded. They have the losses of one rank with all of the batch but for rounding, and
// the bits of each other.
func TestBFloat16Parallel(t *testing.T) {
	c := mlpCourse
	c.options = []InitOption{ComputeDtype(tensor.BFloat16)}
	c.alone = true
	want := c.trainOn(t, 1)
	c.alone = false
	for _, cfg := range []ParallelConfig{{}, {Shard: ShardState}, {Shard: ShardGradients}} {
		c.cfg = cfg
		got := c.trainOn(t, 2)
		for i, v := range want.losses {
			assert.InEpsilon(t, v, got.losses[i], 0x1p-8, "step %d", i)
		}
	}
	c.step = func(s *trainingRank, k int) error {
		x, y, err := s.batch(k)
		if err != nil {
			return err
		}
		for _, tape := range s.in.Steps(1) {
			_, err = tape.Backward(tape.CrossEntropy(s.model.Forward(tape, tape.Input(x)), y))
			for _, p := range ParametersOf(s.model) {
				if p.Grad() != nil && p.Grad().Dtype() != tensor.Float32 {
					err = errors.Join(err, errors.New(p.Name+" has a gradient of bfloat16"))
				}
			}
		}
		err = errors.Join(err, s.dp.AllReduce(s.ctx, y, device.ReduceMax), s.sumOfHalves(), s.opt.Step(s.ctx), s.opt.ZeroGrad(s.ctx), x.Release(), y.Release())
		s.losses = append(s.losses, 0)
		return errors.Join(err, s.in.Err())
	}
	c.cfg = ParallelConfig{}
	c.trainOn(t, 2)
}

// sumOfHalves sums a tensor of bfloat16 over the ranks.
func (s *trainingRank) sumOfHalves() error {
	x, err := s.rt.Full(s.ctx, float64(1+s.n), tensor.BFloat16, 3)
	if err == nil {
		err = s.dp.AllReduce(s.ctx, x, device.ReduceSum)
	}
	if err != nil {
		return err
	}
	got, err := tensor.ToSlice[tensor.BF16](s.ctx, x, nil)
	if want := tensor.ToBF16(float32(s.size * (s.size + 1) / 2)); err == nil && got[2] != want {
		err = fmt.Errorf("the sum over the ranks is %v, want %v", got, want)
	}
	return errors.Join(err, x.Release())
}

// TestBFloat16CapturedStepFollowsTheMasters: a replay rounds what the parameters are then.
func TestBFloat16CapturedStepFollowsTheMasters(t *testing.T) {
	const steps = 40
	b := open(t, 64<<20)
	train := func(captured bool) []float32 {
		in := Init(b.ctx, b.rt, Seed(3), ComputeDtype(tensor.BFloat16))
		model := Sequential{in.Linear(6, 20), ReLU{}, in.LayerNorm(20), in.Linear(20, 3)}
		opt := in.AdamW(model.Parameters(), AdamConfig{LR: new(1e-3)})
		require.NoError(t, opt.Prepare(b.ctx))
		x, y := in.Uniform(-1, 1, 8, 6).Value(), in.Labels([]int{0, 1, 2, 0, 1, 2, 0, 1}, 3)
		require.NoError(t, in.Err())
		step := func() error {
			for _, tape := range in.Steps(1) {
				tape.Minimize(tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), opt)
			}
			return in.Err()
		}
		if !captured {
			for range steps {
				require.NoError(t, step())
			}
		} else {
			graph, err := b.rt.Capture(b.ctx, func(context.Context) error { return step() })
			require.NoError(t, err)
			for range steps {
				require.NoError(t, graph.Replay(b.ctx))
			}
			defer func() { require.NoError(t, graph.Close()) }()
		}
		var all []float32
		for _, p := range model.Parameters() {
			all = append(all, read[float32](b, p.Value())...)
		}
		require.NoError(t, in.Close())
		return all
	}
	require.Equal(t, train(false), train(true))
}
