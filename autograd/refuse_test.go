package autograd_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// TestFreesThatFailAreErrors of the tape, here of a block that the program has freed itself.
func TestFreesThatFailAreErrors(t *testing.T) {
	for name, end := range map[string]func(tape *autograd.Tape, v *autograd.Variable) error{
		"Release": func(tape *autograd.Tape, v *autograd.Variable) error { v.Release(); return tape.Err() },
		"Close":   func(tape *autograd.Tape, _ *autograd.Variable) error { return tape.Close() },
	} {
		b := tapetest.Open(t, 64<<20)
		tape := autograd.NewTape(b.Ctx, b.RT)
		v := tape.Exp(tape.Input(tapetest.Upload(b, []float64{1})))
		require.NoError(t, v.Value().Block().Free())
		err := end(tape, v)
		require.ErrorIs(t, err, memcache.ErrFreed, name)
		require.ErrorContains(t, err, "autograd: ", name)
		require.Error(t, tape.Close(), name)
	}
}

// TestErrorsAfterTheFirst are not reported, and later calls do nothing.
func TestErrorsAfterTheFirst(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1})
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Leaf(x)
	tape.Reshape(v, 2)
	first := tape.Err()
	require.ErrorIs(t, first, tensor.ErrShape)
	before := b.Cache.Stats().Allocation.All.Allocated
	assert.Nil(t, tape.Exp(nil).Value())
	assert.Nil(t, tape.Exp(v).Value())
	assert.Nil(t, tape.Leaf(x).Value())
	assert.Nil(t, tape.Param(nil).Value())
	assert.Nil(t, tape.Input(nil).Value())
	var none context.Context
	tape.SetContext(none)
	assert.Equal(t, first, tape.Err())
	assert.Equal(t, before, b.Cache.Stats().Allocation.All.Allocated)
	assert.Equal(t, first, tape.Close())
}

// TestReleasedParametersAreRefused by Param, and as a loss.
func TestReleasedParametersAreRefused(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Param(p)
	assert.Same(t, v, tape.Param(p))
	require.NoError(t, p.Release())
	_, err := tape.Backward(v)
	require.ErrorIs(t, err, tensor.ErrReleased)
	assert.Nil(t, p.Grad())
	require.Error(t, tape.Close())
	tape = autograd.NewTape(b.Ctx, b.RT)
	tape.Param(p)
	require.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
	require.ErrorContains(t, tape.Err(), "autograd: Param: ")
	require.Error(t, tape.Close())
	tape.Param(b.Parameter(1))
	tape = autograd.NewTape(b.Ctx, b.RT)
	require.NoError(t, tape.Close())
	tape.Param(b.Parameter(1))
	require.ErrorIs(t, tape.Err(), autograd.ErrSpent)
}

// TestGradOfAParametersVariable is the parameter's, also after ZeroGrad.
func TestGradOfAParametersVariable(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(1)
	tape := autograd.NewTape(b.Ctx, b.RT)
	v := tape.Param(p)
	h := tape.MulScalar(v, 2).Keep()
	_, err := tape.Backward(tape.Sum(h))
	require.NoError(t, err)
	assert.Same(t, p.Grad(), v.Grad())
	assert.Nil(t, h.Grad(), "consumed")
	require.NoError(t, p.ZeroGrad(b.Ctx))
	assert.Nil(t, v.Grad())
	require.NoError(t, tape.Close())
}

// TestMessagesNameTheOperand and the remedy.
func TestMessagesNameTheOperand(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1})
	other := autograd.NewTape(b.Ctx, b.RT)
	defer other.Close()
	for want, f := range map[string]func(tape *autograd.Tape, v *autograd.Variable){
		"autograd: Add: variable of another tape: operand 2: bring tensors to this tape with Input, Leaf or Param": func(tape *autograd.Tape, v *autograd.Variable) {
			tape.Add(v, other.Leaf(x))
		},
		"autograd: Sub: tensor was released: operand 1: Release only values that no later operation reads, or Keep them": func(tape *autograd.Tape, v *autograd.Variable) {
			h := tape.Exp(v)
			h.Release()
			tape.Sub(h, v)
		},
		"autograd: Backward: no gradient: no parameter or leaf is part of the loss": func(tape *autograd.Tape, _ *autograd.Variable) {
			_, _ = tape.Backward(tape.Sum(tape.Input(x)))
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		f(tape, tape.Leaf(x))
		assert.EqualError(t, tape.Close(), want)
	}
	tape := autograd.NoGrad(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(tape.Leaf(x)))
	assert.EqualError(t, err, "autograd: Backward: no gradient: the tape was made with NoGrad")
	require.Error(t, tape.Close())
}

// TestReleaseFreesGradients and values, of many parameters too, and joins the errors.
func TestReleaseFreesGradients(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, q, r := b.Parameter(2), b.Parameter(3), b.Parameter(4)
	ps := autograd.Parameters{{Name: "p", Parameter: p}, {Name: "q", Parameter: q}}
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Add(tape.Add(tape.Sum(tape.Param(p)), tape.Sum(tape.Param(q))), tape.Sum(tape.Param(r))))
	require.NoError(t, errors.Join(err, tape.Close()))
	require.Equal(t, int64(6), b.Live())
	require.NoError(t, r.Release())
	assert.Nil(t, r.Grad())
	require.Equal(t, int64(4), b.Live())
	require.NoError(t, q.Grad().Block().Free())
	require.ErrorIs(t, ps.ZeroGrad(b.Ctx), memcache.ErrFreed)
	assert.Equal(t, int64(2), b.Live(), "p's gradient is freed all the same")
	require.NoError(t, q.Value().Block().Free())
	require.ErrorIs(t, ps.Release(), memcache.ErrFreed)
	assert.Zero(t, b.Live())
	require.NoError(t, ps.Release())
}

// TestEveryOperationRefuses operands that are nil or of another tape, and a tape that is closed.
func TestEveryOperationRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	row := tapetest.Upload(b, []float64{1, 2})
	square := array{[]int{2, 2}, []float64{1, 2, 3, 4}}
	other := autograd.NewTape(b.Ctx, b.RT)
	defer other.Close()
	random := rand.New(rand.NewPCG(13, 0))
	for _, op := range graphOps {
		var p params
		if op.options != nil {
			p = op.options(random, []array{square, square, {[]int{2}, []float64{1, 2}}})
		}
		operands := func(tape *autograd.Tape) []*autograd.Variable {
			vs := []*autograd.Variable{tape.Leaf(x), tape.Leaf(x), tape.Leaf(row)}
			if op.name == "AddBias" {
				vs[1] = vs[2]
			}
			return vs[:op.arity]
		}
		tape := autograd.NewTape(b.Ctx, b.RT)
		op.tape(tape, p, operands(tape))
		require.NoError(t, tape.Err(), op.name)
		require.NoError(t, tape.Close())
		for wrong := range op.arity {
			for want, v := range map[error]*autograd.Variable{autograd.ErrTape: other.Leaf(x), autograd.ErrInvalid: nil} {
				if op.name == "LinearReLU" || op.name == "Linear" {
					if wrong == 2 && v == nil {
						continue // no bias
					}
				}
				tape := autograd.NewTape(b.Ctx, b.RT)
				vs := operands(tape)
				vs[wrong] = v
				y := op.tape(tape, p, vs)
				require.ErrorIs(t, tape.Err(), want, op.name)
				require.Nil(t, y.Value(), op.name)
				require.Error(t, tape.Close())
			}
		}
		tape = autograd.NewTape(b.Ctx, b.RT)
		vs := operands(tape)
		require.NoError(t, tape.Close())
		y := op.tape(tape, p, vs)
		require.Nil(t, y.Value(), op.name)
		require.ErrorIs(t, tape.Err(), autograd.ErrSpent, op.name)
	}
}

func TestNewParameterRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	_, err := autograd.NewParameter(nil)
	require.ErrorIs(t, err, autograd.ErrInvalid)
	x := tapetest.Upload(b, []float64{1})
	require.NoError(t, x.Release())
	_, err = autograd.NewParameter(x)
	require.ErrorIs(t, err, autograd.ErrInvalid)
}
