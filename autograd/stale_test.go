package autograd_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// TestAStaleParameterIsAnError, because its gradient would be that of the new value.
func TestAStaleParameterIsAnError(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	w, err := autograd.NewParameter(tapetest.Upload(b, []float64{3}))
	require.NoError(t, err)
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "0.weight", Parameter: w}}, optim.SGDConfig{LR: new(0.5)}))
	require.NoError(t, err)
	square := func() (*autograd.Tape, *autograd.Variable) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		return tape, tape.Sum(tape.Mul(tape.Param(w), tape.Param(w)))
	}
	train := func() error {
		tape, loss := square()
		_, err := tape.Backward(loss)
		return errors.Join(err, opt.Step(b.Ctx), opt.ZeroGrad(b.Ctx), tape.Close())
	}
	stale, loss := square()
	require.NoError(t, train())
	require.Equal(t, []float64{0}, tapetest.Read[float64](b, w.Value()))
	before := w.Value().Version()
	allocations := b.Cache.Stats().Allocation.All.Allocated
	_, err = stale.Backward(loss)
	require.ErrorIs(t, err, autograd.ErrStale)
	assert.Equal(t, allocations+2, b.Cache.Stats().Allocation.All.Allocated, "the gradients of the loss and of the product, and no more")
	require.EqualError(t, err, `autograd: Mul backward: overwritten since the forward pass: parameter "0.weight", float64 (1), is at version 1, and its gradient needs version 0: `+
		"take the optimiser's step after Backward of every tape that has read the parameter, or run the forward pass again")
	assert.Nil(t, w.Grad())
	require.ErrorIs(t, stale.Close(), autograd.ErrStale)
	assert.Equal(t, int64(1), b.Live(), "the parameter alone")
	assert.Equal(t, before, w.Value().Version())
	require.NoError(t, train(), "a new forward pass reads the new value")
	require.NoError(t, opt.Close())
}

// TestOnlyNeededValuesCanBeStale: a sum does not need its operands, nor the first layer its weight.
func TestOnlyNeededValuesCanBeStale(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	value := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	w, err := autograd.NewParameter(value)
	require.NoError(t, err)
	x := tapetest.Upload(b, []float64{5, 6}, 1, 2)
	for name, c := range map[string]struct {
		f     func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable
		write func() error
		stale bool
	}{
		"a sum": {func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable { return tape.Add(tape.Param(w), x) }, func() error { return b.RT.AddInPlace(b.Ctx, value, x) }, false},
		"the weight of inputs": {func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return tape.Linear(x, tape.Param(w), nil)
		}, func() error { return b.RT.Zero(b.Ctx, value) }, false},
		"the inputs": {func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return tape.Linear(x, tape.Param(w), nil)
		}, func() error { return b.RT.Zero(b.Ctx, x) }, true},
		"the weight of activations": {func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return tape.Linear(tape.Linear(x, tape.Param(w), nil), tape.Param(w), nil)
		}, func() error { return b.RT.Zero(b.Ctx, value) }, true},
		"a constant factor": {func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable { return tape.Mul(tape.Param(w), x) }, func() error { return b.RT.Zero(b.Ctx, value) }, false},
		"a result": {func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return tape.Exp(tape.Add(tape.Param(w), x))
		}, func() error { return nil }, false},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(c.f(tape, tape.Input(x)))
		require.NoError(t, c.write())
		_, err := tape.Backward(loss)
		if c.stale {
			require.ErrorIs(t, err, autograd.ErrStale, name)
		} else {
			require.NoError(t, err, name)
		}
		_ = tape.Close()
		require.NoError(t, w.ZeroGrad(b.Ctx))
	}
}

// TestEveryWriteInPlaceMakesStale: each operation that writes in place makes a value stale, also
// through a view.
func TestEveryWriteInPlaceMakesStale(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	fresh := func() *tensor.Tensor { return tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2) }
	other, row := fresh(), tapetest.Upload(b, []float64{1, 2})
	m, v := fresh(), fresh()
	for name, write := range map[string]func(x *tensor.Tensor) error{
		"AddInPlace":         func(x *tensor.Tensor) error { return b.RT.AddInPlace(b.Ctx, x, other) },
		"SubInPlace":         func(x *tensor.Tensor) error { return b.RT.SubInPlace(b.Ctx, x, other) },
		"MulInPlace":         func(x *tensor.Tensor) error { return b.RT.MulInPlace(b.Ctx, x, other) },
		"MulScalarInPlace":   func(x *tensor.Tensor) error { return b.RT.MulScalarInPlace(b.Ctx, x, 2) },
		"AddBiasInPlace":     func(x *tensor.Tensor) error { return b.RT.AddBiasInPlace(b.Ctx, x, row) },
		"AddBiasReLUInPlace": func(x *tensor.Tensor) error { return b.RT.AddBiasReLUInPlace(b.Ctx, x, row) },
		"Zero":               func(x *tensor.Tensor) error { return b.RT.Zero(b.Ctx, x) },
		"CopyFrom":           func(x *tensor.Tensor) error { return tensor.CopyFrom(b.Ctx, x, make([]float64, 4)) },
		"ReLUGrad": func(x *tensor.Tensor) error {
			_, err := b.RT.ApplyGrad(b.Ctx, fn.ReLU, x, x, other)
			return err
		},
		"StepSGD": func(x *tensor.Tensor) error {
			return stepOne(b.Ctx, b.RT, tensor.SGD{LR: 1}, x, other, nil)
		},
		"momentum": func(x *tensor.Tensor) error {
			return stepOne(b.Ctx, b.RT, tensor.SGD{LR: 1, Momentum: 1}, m, other, x)
		},
		"StepAdam": func(x *tensor.Tensor) error {
			return stepOne(b.Ctx, b.RT, tensor.Adam{LR: 1, Step: 1}, x, other, m, v)
		},
		"first moment": func(x *tensor.Tensor) error {
			return stepOne(b.Ctx, b.RT, tensor.Adam{LR: 1, Step: 1}, m, other, x, v)
		},
		"second moment": func(x *tensor.Tensor) error {
			return stepOne(b.Ctx, b.RT, tensor.Adam{LR: 1, Step: 1}, m, other, v, x)
		},
	} {
		x := fresh()
		view, err := b.RT.Reshape(b.Ctx, x, 2, 2)
		require.NoError(t, err)
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(tape.Square(tape.Leaf(x)))
		require.NoError(t, write(view), name)
		require.Equal(t, uint64(1), x.Version(), name)
		_, err = tape.Backward(loss)
		require.ErrorIs(t, err, autograd.ErrStale, name)
		require.ErrorContains(t, err, "a value, float64 (2, 2), is at version 1, and its gradient needs version 0: overwrite it after Backward", name)
		require.Error(t, tape.Close())
		require.NoError(t, view.Release())
	}
	assert.Zero(t, other.Version(), "gradients and operands are read only")
	assert.Zero(t, row.Version())
	assert.Zero(t, (*tensor.Tensor)(nil).Version())
}

// stepOne is tensor.Step of one parameter.
func stepOne[R tensor.Rule](ctx context.Context, rt *tensor.Runtime, rule R, p, g *tensor.Tensor, state ...*tensor.Tensor) error {
	u := tensor.Update[R]{Rule: rule, P: p, G: g}
	copy(u.State[:], state)
	return tensor.Step(ctx, rt, []tensor.Update[R]{u})
}
