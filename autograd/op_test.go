package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// doubled is an operation as callers write it. forward counts calls.
type doubled struct{ forward *int }

var opDoubled = autograd.NewOp[doubled]("Doubled")

func (d *doubled) Saves(*autograd.Call) {}

func (d *doubled) Forward(c *autograd.Call) (*tensor.Tensor, error) {
	if d.forward != nil {
		*d.forward++
	}
	c.Overwrite(0)
	return c.Runtime().MulScalar(c.Context(), c.Input(0), 2)
}

func (d *doubled) Backward(c *autograd.Call, g *tensor.Tensor) error {
	y, err := c.Runtime().MulScalar(c.Context(), g, 2)
	return c.GiveReplacing(0, g, y, err)
}

// TestOpOfAProgram: a recomputation skips an operation whose result is not read. The operation
// works in place, and profiles and errors have its name.
func TestOpOfAProgram(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	x := tapetest.Upload(b, make([]float64, 512))
	forward := 0
	tape := autograd.NewTape(b.Ctx, b.RT)
	leaf := tape.Leaf(x)
	y := remat.Checkpoint(tape, func() *autograd.Variable { return opDoubled.Apply(tape, doubled{&forward}, tape.Neg(leaf)) })
	z := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Square(opDoubled.Apply(tape, doubled{&forward}, leaf)) })
	require.Equal(t, 2, forward)
	_, err := tape.Backward(tape.Sum(tape.Add(y, z)))
	require.NoError(t, err)
	require.Equal(t, 3, forward, "the square reads its operand again, and nobody the first one's result")
	require.NoError(t, tape.Reset(b.Ctx))

	once := tape.AddScalar(tape.Input(x), 1)
	memory := tensor.MemoryOf(once.Value())
	doubledOnce := tape.Module("part", func() *autograd.Variable { return opDoubled.Apply(tape, doubled{}, once.Once()) })
	require.Equal(t, memory, tensor.MemoryOf(doubledOnce.Value()), "in place")
	own := tape.Module("part", func() *autograd.Variable { return opDoubled.Apply(tape, doubled{}, tape.Input(x)) })
	require.Equal(t, "part.Doubled", own.Value().Label().Module)
	require.Equal(t, "part", tape.Module("part", func() *autograd.Variable { return tape.Neg(own) }).Value().Label().Module, "and not behind it")
	opDoubled.Apply(tape, doubled{}, nil)
	require.ErrorContains(t, tape.Reset(b.Ctx), "autograd: Doubled: ")
	opDoubled.Apply(nil, doubled{}, leaf) // is inert
	require.NoError(t, errors.Join(tape.Close(), x.Release()))
}

// TestOpMakesNoObjects on a tape that is reset.
func TestOpMakesNoObjects(t *testing.T) {
	skipWhereChecksMakeObjects(t)
	b := tapetest.OpenIdle(t)
	m := garbageModel{"MLP", func(in *nn.Initializer) runModel {
		return nn.Sequential{nn.Flatten{}, in.Linear(784, 16), doubling{}, in.Linear(16, 10)}
	}, []int{32, 784}, 0, 6}
	assert.LessOrEqual(t, garbage(b, m, false, m.most), m.most)
	assert.Zero(t, garbage(b, m, true, 0))
}

// doubling is a layer of the operation.
type doubling struct{ unnamed }

func (doubling) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return opDoubled.Apply(t, doubled{}, x)
}

// misbehaving is an operation with a fault.
type misbehaving struct{ how string }

var opMisbehaving = autograd.NewOp[misbehaving]("Misbehaving")

func (m *misbehaving) Forward(c *autograd.Call) (*tensor.Tensor, error) {
	switch m.how {
	case "no tensor":
		return nil, nil
	case "an input":
		return c.Input(0), nil
	case "saved":
		own, err := c.Runtime().Copy(c.Context(), c.Input(0))
		if err == nil {
			c.Save(own)
			err = errors.New("and then an error")
		}
		return nil, err
	}
	c.Overwrite(7)
	return c.Runtime().Share(c.Context(), c.Input(0))
}

func (m *misbehaving) Backward(c *autograd.Call, g *tensor.Tensor) error {
	c.Done(7)
	switch m.how {
	case "dtype":
		d, err := c.Runtime().Convert(c.Context(), g, tensor.Float32)
		return c.Give(0, d, err)
	case "no input":
		return c.Give(1, g, nil)
	case "shape":
		d, err := c.Runtime().Zeros(c.Context(), g.Dtype(), 5, 7)
		return c.Give(0, d, err)
	}
	return errors.New("of Backward")
}

// TestOpsMisbehave: faults of an operation are errors with its name, and nothing leaks.
func TestOpsMisbehave(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	for how, words := range map[string]string{
		"no tensor": "autograd: Misbehaving: invalid argument: forward returned no tensor",
		"an input":  "forward returned an input: return a Share of it",
		"saved":     "autograd: Misbehaving: and then an error",
		"dtype":     "autograd: Misbehaving backward: wrong dtype: the gradient of input 1, which is float64, is float32",
		"shape":     "autograd: Misbehaving backward: ",
		"an error":  "autograd: Misbehaving backward: of Backward",
		"no input":  "autograd: Misbehaving backward: invalid argument: a gradient for input 2 of 1",
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.Sum(opMisbehaving.Apply(tape, misbehaving{how}, tape.Leaf(x))))
		require.ErrorContains(t, err, words, how)
		require.ErrorContains(t, tape.Close(), words, how)
	}
	for _, o := range []*autograd.Op[misbehaving, *misbehaving]{nil, {}} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		o.Apply(tape, misbehaving{}, tape.Input(x))
		require.ErrorContains(t, tape.Close(), "the operation was not made by NewOp")
	}
	require.NoError(t, x.Release())
}

// TestManyDimensions: lists may have more numbers than the inline capacity of records.
func TestManyDimensions(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4})
	tape := autograd.NewTape(b.Ctx, b.RT)
	leaf := tape.Leaf(x)
	y := tape.Permute(tape.Reshape(leaf, 2, 1, 1, 1, 1, 1, 1, 2), 7, 1, 2, 3, 4, 5, 6, 0).Keep()
	_, err := tape.Backward(tape.Sum(tape.Mul(y, tape.Reshape(tape.Input(x), 2, 1, 1, 1, 1, 1, 1, 2))))
	require.NoError(t, err)
	require.Equal(t, tensor.Shape{2, 1, 1, 1, 1, 1, 1, 2}, y.Shape())
	require.Equal(t, []float64{1, 3, 2, 4}, tapetest.Read[float64](b, y.Value()))
	require.Equal(t, []float64{1, 3, 2, 4}, tapetest.Read[float64](b, leaf.Grad()))
	require.NoError(t, errors.Join(tape.Close(), x.Release()))
}

// heldCall is an operation whose Call the caller keeps.
type heldCall struct{ of **autograd.Call }

var opHeldCall = autograd.NewOp[heldCall]("Holding")

func (h *heldCall) Forward(c *autograd.Call) (*tensor.Tensor, error) {
	*h.of = c
	return c.Runtime().Copy(c.Context(), c.Input(0))
}

func (h *heldCall) Backward(c *autograd.Call, g *tensor.Tensor) error { return c.Give(0, g, nil) }

// TestHeldCall: a Call that is used after Backward returns errors and zeros.
func TestHeldCall(t *testing.T) {
	b := tapetest.Open(t, 8<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	var c *autograd.Call
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(opHeldCall.Apply(tape, heldCall{&c}, tape.Leaf(x))))
	require.NoError(t, errors.Join(err, tape.Close()))
	require.NotNil(t, c.Context())
	require.Nil(t, c.Runtime())
	require.Nil(t, c.Input(0))
	require.Nil(t, c.Result())
	require.False(t, c.Recomputing() || c.NeedsGrad(0) || c.NeedsGrads())
	require.ErrorIs(t, c.Give(0, x, nil), autograd.ErrInvalid)
	require.Zero(t, c.Random())
	c.Overwrite(0)
	c.Done(0)
	c.DoneResult()
	c.Free(x)
	require.True(t, x.Released())
}
