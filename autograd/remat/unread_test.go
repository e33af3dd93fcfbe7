package remat_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestCheckpointComputesNothingThatNobodyReads: the second run launches only the operations whose
// values gradients need or the program reads, and the gradients are bit-identical to those of the
// function in a frame.
func TestCheckpointComputesNothingThatNobodyReads(t *testing.T) {
	ctx := context.Background()
	b := tapetest.Open(t, 64<<20)
	launches := 0
	stream, err := b.Dev.NewStream(device.StreamOptions{Launching: func(device.Stream, string) func(error) { launches++; return nil }})
	require.NoError(t, err)
	rt, err := tensor.NewRuntime(b.Cache, b.RT.Pool(), stream)
	require.NoError(t, err)
	in := nn.Init(ctx, rt, nn.Seed(3))
	w, v := in.Linear(4, 4), in.Linear(4, 4)
	c := in.Conv2d(1, 1, 3, nn.Padding(1))
	x := in.Tensor([]float64{1, -2, 3, 0.5, 2, 0.25, -1, 4, 0, 1, 3, -3, 2, -0.5, 1, 1}, 4, 4)
	require.NoError(t, in.Err())
	looked := 0.0
	picture := func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Reshape(x, 1, 1, 4, 4) }
	for name, f := range map[string]struct {
		whole, read func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
	}{
		"a block": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.MulScalar(t.Add(x, v.Forward(t, t.GELUTanh(w.Forward(t, x)))), 0.5)
		}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.GELUTanh(w.Forward(t, x)) }},
		"a sum": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.AddScalar(t.Reshape(t.Sub(t.Add(x, x), x), 16), 1)
		}, nil},
		"a product": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.AddBias(t.Transpose(t.MatMul(x, t.Param(w.Weight))), t.Param(w.Bias))
		}, nil},
		"a picture": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.Dropout(c.Forward(t, picture(t, x)), 0.5)
		}, nil},
		"a result that is saved": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Tanh(t.Add(x, x)) },
			func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Tanh(t.Add(x, x)) }},
		"an argument that is saved": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Square(t.Add(x, x)) },
			func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Add(x, x) }},
		"an operation that saves what it makes": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.Add(x, t.LayerNorm(t.Add(x, x), nil, nil, 0, 4))
		},
			func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
				return t.LayerNorm(t.Add(x, x), nil, nil, 0, 4)
			}},
		"a program's own operation": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.Func("Twice", []*autograd.Variable{t.Add(x, x)}, func(c *autograd.Call) (*tensor.Tensor, error) {
				return rt.MulScalar(c.Context(), c.Input(0), 2)
			}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
				return c.Grads(rt.MulScalar(c.Context(), g, 2))
			})
		}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.MulScalar(t.Add(x, x), 2) }},
		"a value that is looked at": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			h := t.Add(x, x)
			_, err := tensor.ToSlice[float32](ctx, h.Value(), nil)
			if err != nil {
				t.Fail(fmt.Errorf("autograd: ToSlice: %w", err))
			}
			return t.Add(h, x)
		}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Add(x, x) }},
		"an item that is looked at": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			h := t.Narrow(t.Narrow(t.Add(x, x), 0, 0, 1), 1, 0, 1)
			y := t.Add(h, h)
			looked = y.Item()
			return t.Add(y, x)
		}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			h := t.Narrow(t.Narrow(t.Add(x, x), 0, 0, 1), 1, 0, 1)
			return t.Add(h, h)
		}},
		"a value that is kept": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Add(t.Add(x, x).Keep(), x) },
			func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Add(x, x) }},
		"a value that only an inner checkpoint reads": {func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			h := t.Add(x, x)
			return remat.Checkpoint(t, func() *autograd.Variable { return t.Add(h, x) })
		}, func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Add(x, x) }},
	} {
		step := func(apart func(*autograd.Tape, func() *autograd.Variable) *autograd.Variable, f func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable) (gradients [][]float32, n int) {
			tape := autograd.NewTape(ctx, rt)
			tape.SetSeed(5)
			leaf := tape.Leaf(x)
			launches = 0
			y := apart(tape, func() *autograd.Variable { return f(tape, leaf) })
			_, err := tape.Backward(tape.Sum(tape.Mul(y, y)))
			require.NoError(t, err, name)
			for _, g := range []*tensor.Tensor{leaf.Grad(), w.Weight.Grad(), w.Bias.Grad(), v.Weight.Grad(), v.Bias.Grad(), c.Weight.Grad(), c.Bias.Grad()} {
				if g != nil {
					values, err := tensor.ToSlice[float32](ctx, g, nil)
					require.NoError(t, err, name)
					gradients = append(gradients, values)
				}
			}
			n = launches
			require.NoError(t, nn.ParametersOf(nn.Sequential{w, v, c}).ZeroGrad(ctx))
			require.NoError(t, tape.Close())
			return gradients, n
		}
		want, plain := step((*autograd.Tape).Frame, f.whole)
		got, twice := step(remat.Checkpoint, f.whole)
		require.Equal(t, want, got, name)
		again := 0
		if f.read != nil {
			tape := autograd.NewTape(ctx, rt)
			launches = 0
			f.read(tape, tape.Input(x))
			again = launches
			require.NoError(t, tape.Close())
		}
		require.Equal(t, again, twice-plain, name)
	}
	require.Equal(t, 4.0, looked)
	require.NoError(t, in.Close())
	require.NoError(t, rt.Close())
	require.NoError(t, stream.Close())
}
