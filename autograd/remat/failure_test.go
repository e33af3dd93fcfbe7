package remat_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

type (
	failing  = tapetest.Failing
	onTape   = *autograd.Tape
	variable = *autograd.Variable
)

// recomputes returns a trial of a step of two matrices and a tensor from outside, on a tape that
// computes in a dtype.
func recomputes(compute tensor.Dtype, do func(t onTape, a, b variable, x *tensor.Tensor) variable) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		dtype := tensor.Float64
		if compute.Wide() != 0 {
			dtype = compute.Wide()
		}
		ps, outside := m.Operands(dtype, []int{2, 3}, []int{2, 3}), m.Operands(dtype, []int{3})
		return m.OnTape(tapetest.TapeTrial{
			Compute: compute, Parameters: ps,
			Do: func(t onTape) variable {
				vs := tapetest.ParamsOf(t, ps)
				return do(t, vs[0], vs[1], outside[0].Value())
			},
			Undo: func() error { return errors.Join(ps.Release(), outside.Release()) },
		})
	}
}

// parts is a checkpoint that contains another one, random numbers, a tensor that it brings, and
// values that the second run does not read.
func parts(t onTape, a, b variable, x *tensor.Tensor) variable {
	return remat.Checkpoint(t, func() variable {
		inner := remat.Checkpoint(t, func() variable { return t.Dropout(t.Mul(t.Exp(a), t.Input(x)), 0.5) })
		return t.Neg(t.Mul(inner, t.Sin(b)))
	})
}

// ofLayer returns a trial of a wrapped layer.
func ofLayer(wrap func(l nn.Layer) nn.Layer) func(testing.TB, *failing) failtest.Trial {
	return func(t testing.TB, m *failing) failtest.Trial {
		in := nn.Init(m.Ctx, m.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
		l := wrap(nn.Sequential{in.Linear(3, 2), nn.ReLU{}, in.Linear(2, 3), in.BatchNorm(3, nn.NoRunningStatistics())})
		require.NoError(t, in.Err())
		x := m.Operands(tensor.Float64, []int{2, 3})
		return m.OnTape(tapetest.TapeTrial{
			Parameters: append(x, l.Parameters()...),
			Do:         func(t onTape) variable { return t.Exp(l.Forward(t, t.Param(x[0].Parameter))) },
			Undo:       func() error { return errors.Join(x.Release(), in.Close()) },
		})
	}
}

var failureRows = []failtest.Row[*failing]{
	{Of: "Checkpoint", Make: recomputes(0, parts)},
	{Of: "Checkpoint of 16 bits", Make: recomputes(tensor.BFloat16, parts)},
	{Of: "Checkpoint of what is released", Make: recomputes(0, func(t onTape, a, b variable, _ *tensor.Tensor) variable {
		h := t.Exp(a)
		y := remat.Checkpoint(t, func() variable { return t.Mul(t.Tanh(h), b) })
		h.Release()
		return t.Mul(y, b)
	})},
	{Of: "Layer", Make: ofLayer(remat.Layer)},
	{Of: "Plan.Layer", Make: ofLayer(func(l nn.Layer) nn.Layer { return new(remat.Plan).Layer("part", l) })},
}

// TestCheckpointsFail: whichever driver call, allocation or check of a context fails, in the first
// or the second run of a function, a step has done everything or nothing, and then succeeds on the
// same tape.
func TestCheckpointsFail(t *testing.T) {
	if !testing.Short() {
		t.Run("cached", func(t *testing.T) { tapetest.FailingSuite(t, failureRows) })
	}
	t.Run("uncached", func(t *testing.T) { tapetest.UncachedSuite(t, failureRows) })
}
