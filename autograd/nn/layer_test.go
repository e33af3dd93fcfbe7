package nn_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// identity is a layer that returns its argument, and probe one that calls a function with it.
type (
	identity struct{}
	probe    struct{ before func(x *autograd.Variable) }
)

func (identity) Forward(_ *autograd.Tape, x *autograd.Variable) *autograd.Variable { return x }

func (identity) Parameters() autograd.Parameters { return nil }

func (p probe) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	p.before(x)
	return t.Tanh(x)
}

func (probe) Parameters() autograd.Parameters { return nil }

// TestIdentityLayer: a value that a layer returns unchanged still belongs to the next layer.
func TestIdentityLayer(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	for _, record := range []bool{true, false} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		h := tape.MulScalar(tape.Input(x), 0.5)
		y := nn.Sequential{identity{}, nn.ReLU{}, identity{}, nn.ReLU{}, identity{}}.Forward(tape, h)
		require.NoError(t, tape.Err())
		assert.Equal(t, []float64{0.5, 1}, tapetest.Read[float64](b, y.Value()))
		assert.False(t, h.Value().Released())
		require.NoError(t, tape.Close())
	}
}

// TestSequentialReleasesIntermediates: a value between two layers is released after the second one
// has read it.
func TestSequentialReleasesIntermediates(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	for _, record := range []bool{true, false} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		var seen []*autograd.Variable
		look := probe{func(x *autograd.Variable) {
			for _, v := range seen[min(1, len(seen)):] {
				assert.True(t, v.Value().Released(), "the argument of a layer before")
			}
			seen = append(seen, x)
		}}
		nn.Sequential{look, look, look, look}.Forward(tape, tape.Input(x))
		require.NoError(t, tape.Err())
		require.Len(t, seen, 4)
		require.NoError(t, tape.Close())
	}
}

// TestABiasAloneIsTrained: the others are constants.
func TestABiasAloneIsTrained(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	c, p := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2), b.Parameter(2)
	for name, f := range map[string]func(t *autograd.Tape, c, bias *autograd.Variable) *autograd.Variable{
		"Linear":     func(t *autograd.Tape, c, bias *autograd.Variable) *autograd.Variable { return t.Linear(c, c, bias) },
		"LinearReLU": func(t *autograd.Tape, c, bias *autograd.Variable) *autograd.Variable { return t.LinearReLU(c, c, bias) },
		"AddBias":    func(t *autograd.Tape, c, bias *autograd.Variable) *autograd.Variable { return t.AddBias(c, bias) },
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.Sum(f(tape, tape.Input(c), tape.Param(p))))
		require.NoError(t, err, name)
		assert.Equal(t, []float64{2, 2}, tapetest.Read[float64](b, p.Grad()), name)
		require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.Ctx)))
	}
}
