package parallel_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/parallel"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor"
)

// TestBFloat16Parallel: ranks reduce float32 gradients with any sharding. Except for rounding their
// losses are those of one rank with the whole batch, and their parameters are bit-identical.
func TestBFloat16Parallel(t *testing.T) {
	c := mlpCourse
	c.options = []nn.InitOption{nn.ComputeDtype(tensor.BFloat16)}
	c.alone = true
	want := c.trainOn(t, 1)
	c.alone = false
	for _, cfg := range []parallel.Config{{}, {Shard: parallel.ShardState}, {Shard: parallel.ShardGradients}} {
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
			for _, p := range nn.ParametersOf(s.model) {
				if p.Grad() != nil && p.Grad().Dtype() != tensor.Float32 {
					err = errors.Join(err, errors.New(p.Name+" has a gradient of bfloat16"))
				}
			}
		}
		err = errors.Join(err, s.dp.AllReduce(s.Ctx, y, device.ReduceMax), s.sumOfHalves(), s.opt.Step(s.Ctx), s.opt.ZeroGrad(s.Ctx), x.Release(), y.Release())
		s.losses = append(s.losses, 0)
		return errors.Join(err, s.in.Err())
	}
	c.cfg = parallel.Config{}
	c.trainOn(t, 2)
}

// sumOfHalves sums a tensor of bfloat16 over the ranks.
func (s *trainingRank) sumOfHalves() error {
	x, err := s.RT.Full(s.Ctx, float64(1+s.N), tensor.BFloat16, 3)
	if err == nil {
		err = s.dp.AllReduce(s.Ctx, x, device.ReduceSum)
	}
	if err != nil {
		return err
	}
	got, err := tensor.ToSlice[tensor.BF16](s.Ctx, x, nil)
	if want := tensor.ToBF16(float32(s.Size * (s.Size + 1) / 2)); err == nil && got[2] != want {
		err = fmt.Errorf("the sum over the ranks is %v, want %v", got, want)
	}
	return errors.Join(err, x.Release())
}
