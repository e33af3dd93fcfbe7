package nn_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestStepsReleaseTheirTensors, but not parameters, nor tensors that were made before and after.
func TestStepsReleaseTheirTensors(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	before := in.Tensor([]float64{1})
	var inside []*tensor.Tensor
	var late *nn.Linear
	var live []int64
	for i, tape := range in.Steps(4) {
		x, y := in.Tensor([]float64{1, 2}, 1, 2), in.Labels([]int{1}, 3)
		inside = append(inside, x, y)
		if i == 0 {
			late = in.Linear(2, 3)
		}
		if i == 1 {
			require.NoError(t, in.Err(), "from now on they are the program's")
		}
		for range in.Steps(1) {
			inside = append(inside, in.Tensor([]float64{3}))
		}
		assert.True(t, inside[len(inside)-1].Released(), "a step in a step")
		assert.False(t, x.Released())
		late.Forward(tape, tape.Input(x))
		require.NoError(t, x.Release(), "the program may release them before")
	}
	live = append(live, b.Live())
	for range in.Steps(100) {
		in.Tensor([]float64{1, 2})
	}
	live = append(live, b.Live())
	assert.Equal(t, "initializer of 3 tensors and layers", in.String(), "the list has none of them")
	for _, x := range inside {
		assert.True(t, x.Released())
	}
	after := in.Tensor([]float64{1})
	assert.False(t, before.Released() || after.Released() || late.Weight.Value().Released())
	assert.Equal(t, live[0], live[1])
	require.NoError(t, in.Close())
	assert.True(t, before.Released() && after.Released() && late.Weight.Value().Released())
	assert.Zero(t, b.Live())
}

// TestErrorInAStep: the error releases everything made since Err, and the end of the step does not
// release it again.
func TestErrorInAStep(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	kept := in.Tensor([]float64{1})
	require.NoError(t, in.Err())
	in.Linear(2, 3)
	for range in.Steps(3) {
		in.Tensor([]float64{2})
		in.Linear(0, 3)
	}
	require.ErrorIs(t, in.Err(), autograd.ErrInvalid)
	assert.False(t, kept.Released())
	require.ErrorIs(t, in.Close(), autograd.ErrInvalid)
	assert.Zero(t, b.Live())
}

// TestReleasedTensorsAreForgotten: a loop that releases its tensors keeps none of them, and an
// error does not release those that Err has accepted.
func TestReleasedTensorsAreForgotten(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	var kept []*tensor.Tensor
	for i := range 5000 {
		x := in.Tensor([]float64{float64(i)})
		if i%1000 != 0 {
			require.NoError(t, x.Release())
			continue
		}
		kept = append(kept, x)
		require.NoError(t, in.Err())
	}
	assert.Less(t, in.String(), "initializer of 9", "%v of 5000", in)
	require.Len(t, in.String(), len("initializer of 64 tensors and layers"), "%v", in)
	last := in.Tensor([]float64{1})
	in.Linear(0, 1)
	for _, x := range kept {
		assert.False(t, x.Released())
	}
	assert.True(t, last.Released())
	require.Error(t, in.Close())
	assert.Zero(t, b.Live())
}

// TestFirstCause: an operation that reads a tensor or a layer that was not made returns the
// initialiser's first error.
func TestFirstCause(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	first := in.Linear(0, 3)
	second := in.Conv2d(-1, 3, 2)
	x, y := in.Tensor([]float64{1, 2}, 1, 2), in.Labels([]int{7}, 2)
	const cause = "nn: Linear(0, 3): "
	for name, f := range map[string]func(*autograd.Tape){
		"input":  func(tape *autograd.Tape) { tape.Input(x) },
		"leaf":   func(tape *autograd.Tape) { tape.Leaf(x) },
		"labels": func(tape *autograd.Tape) { tape.CrossEntropy(autograd.Upload(tape, []float32{1, 2}, 1, 2), y) },
		"target": func(tape *autograd.Tape) { tape.MSELoss(autograd.Upload(tape, []float32{1, 2}, 1, 2), x) },
		"layer":  func(tape *autograd.Tape) { second.Forward(tape, autograd.Upload(tape, []float32{1, 2}, 1, 2)) },
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		f(tape)
		require.ErrorContains(t, tape.Close(), cause, name)
	}
	require.ErrorContains(t, optim.NewAdam(nn.Sequential{second, first}.Parameters(), optim.AdamConfig{}).Err(), cause)
	_, err := tensor.ToSlice[float32](b.Ctx, x, nil)
	require.ErrorContains(t, err, cause)
	require.NoError(t, x.Release(), "as often as one likes")
	require.ErrorContains(t, in.Close(), cause)
}

// TestFailedCaptureKeepsTheModel, although Err was not called before it.
func TestFailedCaptureKeepsTheModel(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	model := nn.Sequential{in.Linear(2, 3)}
	x, y := in.Tensor([]float64{1, 2}, 1, 2), in.Labels([]int{1}, 3)
	sgd := nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{}))
	_, err := b.RT.Capture(b.Ctx, func(context.Context) error {
		for range in.Steps(1) {
			in.Linear(0, 1)
		}
		return in.Err()
	})
	require.ErrorIs(t, err, autograd.ErrInvalid)
	for _, tape := range in.Steps(1) {
		optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), sgd)
	}
	require.NoError(t, in.Close())
}
