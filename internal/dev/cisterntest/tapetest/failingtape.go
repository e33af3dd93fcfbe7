package tapetest

import (
	"context"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/failtest"
	"github.com/cistern-ml/cistern/tensor"
)

// TapeTrial is a trial of a program on a tape, which is reset before each use.
type TapeTrial struct {
	NoGrad     bool
	Compute    tensor.Dtype // 0: the dtype of the operands
	Parameters autograd.Parameters
	Buffers    []*tensor.Tensor
	// Do computes a result and, if the tape records, runs its backward pass.
	Do func(t *autograd.Tape) *autograd.Variable
	// Undo frees the program's memory outside of the tape.
	Undo func() error
}

// OnTape makes a trial. See returns the result, the parameters, their gradients, the buffers, and
// the live memory. A program that fails must return its error twice, and leave the tape usable.
func (m *Failing) OnTape(trial TapeTrial) failtest.Trial {
	tape := NewTape(m.Ctx, m.RT, !trial.NoGrad)
	var y *autograd.Variable
	step := func(ctx context.Context) error {
		require.NoError(m.T, tape.Reset(ctx), "the error was returned already")
		tape.SetSeed(7)
		if trial.Compute != 0 {
			tape.SetComputeDtype(trial.Compute)
		}
		result := trial.Do(tape).Keep()
		if trial.NoGrad {
			y = result
			return tape.Err()
		}
		_, err := tape.Backward(tape.Sum(tape.Square(result)))
		y = result
		return err
	}
	return failtest.Trial{
		Do: func(ctx context.Context) error {
			err := step(ctx)
			if err != nil {
				y = nil
				before := m.SeeParameters(trial.Parameters)
				_, again := tape.Backward(nil)
				require.Equal(m.T, err, again, "Backward again")
				require.Equal(m.T, before, m.SeeParameters(trial.Parameters), "Backward again")
				require.Equal(m.T, err, tape.Reset(ctx), "Reset after the error")
			}
			return err
		},
		See: func() any {
			live, bytes := m.RT.Live()
			all := []any{m.Numbers(y.Value()), y.Shape(), m.SeeParameters(trial.Parameters), live, bytes}
			for _, b := range trial.Buffers {
				all = append(all, m.Numbers(b))
			}
			return all
		},
		Undo: func() error { return errors.Join(tape.Close(), trial.Undo()) },
	}
}

// Operands returns parameters of these shapes, with positive numbers.
func (m *Failing) Operands(dtype tensor.Dtype, shapes ...[]int) (ps autograd.Parameters) {
	m.T.Helper()
	for i, shape := range shapes {
		data := make([]float64, Elements(shape))
		for j := range data {
			data[j] = 0.25 + float64((5*i+3*j)%7)/8
		}
		x, err := tensor.FromSlice(m.Ctx, m.RT, data, shape...)
		require.NoError(m.T, err)
		value, err := m.RT.Convert(m.Ctx, x, dtype)
		require.NoError(m.T, errors.Join(err, x.Release()))
		ps = append(ps, autograd.Named{Name: fmt.Sprint("p", i), Parameter: m.ParameterOf(value)})
	}
	return ps
}

// ParamsOf returns the variables of parameters.
func ParamsOf(t *autograd.Tape, ps autograd.Parameters) (vs []*autograd.Variable) {
	for _, p := range ps {
		vs = append(vs, t.Param(p.Parameter))
	}
	return vs
}
