package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// TestInPlaceTakesTheArgumentsMemory: a result takes the memory of an argument that has no other
// reader, with its label, and counts the write. It never takes memory with another reader.
func TestInPlaceTakesTheArgumentsMemory(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, -2, 3, -4}, 2, 2)
	for name, c := range map[string]struct {
		inPlace bool
		run     func(tape *autograd.Tape, leaf *autograd.Variable) (from, y *autograd.Variable)
	}{
		"what was read once": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.ReLU(h.Once())
		}},
		"what may be read again": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.ReLU(h)
		}},
		"what is kept": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2).Keep()
			return h, t.ReLU(h.Once())
		}},
		"what the gradient of an operation before needs": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.Tanh(l)
			return h, t.ReLU(h.Once())
		}},
		"what another operation has saved": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.Add(t.Square(h), t.ReLU(h.Once()))
		}},
		"what the gradient of the operation itself needs": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.GELU(h.Once())
		}},
		"both operands in one": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.Div(h.Once(), h)
		}},
		"what shares its memory": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2).Keep()
			v := t.Reshape(h, 4)
			return v, t.ReLU(v.Once())
		}},
		"an input": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.Input(x)
			return h, t.Add(h.Once(), l)
		}},
		"what no operation has made": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := autograd.Upload(t, []float64{1, 2, 3, 4}, 2, 2)
			return h, t.Add(h.Once(), l)
		}},
		"a leaf": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) { return l, t.ReLU(l.Once()) }},
		"what has another shape": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.Sum(l)
			return h, t.Add(h.Once(), l)
		}},
		"the second operand": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.Sub(l, h.Once())
		}},
		"a sum": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.Add(h.Once(), t.Sum(l, 0))
		}},
		"dropout": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.Dropout(h.Once(), 0.5)
		}},
		"dropout of channels": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.Dropout2d(h.Once(), 0.5)
		}},
		"what a PReLU reads again": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.PReLU(h.Once(), t.Sum(l, 0))
		}},
		"a bias": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, t.AddBias(h.Once(), t.Sum(l, 0))
		}},
		"what was made in a frame before": {true, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.Frame(func() *autograd.Variable { return t.MulScalar(l, 2) })
			return h, t.ReLU(h.Once())
		}},
		"what is read in a frame behind": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2).Once()
			return h, t.Frame(func() *autograd.Variable { return t.ReLU(h) })
		}},
		"what was read once in a frame that has ended": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.Frame(func() *autograd.Variable { return t.MulScalar(l, 2).Once() })
			return h, t.Frame(func() *autograd.Variable { return t.ReLU(h) })
		}},
		"what a layer leaves to its caller": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2).Once()
			return h, nn.ReLU{}.Forward(t, h)
		}},
		"what a checkpoint reads from outside": {false, func(t *autograd.Tape, l *autograd.Variable) (_, y *autograd.Variable) {
			h := t.MulScalar(l, 2)
			return h, remat.Checkpoint(t, func() *autograd.Variable { return t.ReLU(h.Once()) })
		}},
	} {
		t.Run(name, func(t *testing.T) {
			run := func(outOfPlace bool) (value, grad []uint64) {
				tape := autograd.NewTape(b.Ctx, b.RT)
				autograd.SetOutOfPlace(tape, outOfPlace)
				tape.SetSeed(1)
				leaf := tape.Leaf(x)
				before := allocations(b)
				from, y := c.run(tape, leaf)
				require.NoError(t, tape.Err())
				if !outOfPlace {
					allocated := allocations(b) - before
					again := autograd.NewTape(b.Ctx, b.RT)
					autograd.SetOutOfPlace(again, true)
					again.SetSeed(1)
					before = allocations(b)
					c.run(again, again.Leaf(x))
					require.Equal(t, c.inPlace, allocated < allocations(b)-before)
					require.NoError(t, again.Close())
					require.Equal(t, c.inPlace, from.Value().Version() > 0, "a write is counted")
				}
				value = bitsOf(b, y.Value())
				_, err := tape.Backward(tape.Sum(tape.Square(y)))
				require.NoError(t, err)
				grad = bitsOf(b, leaf.Grad())
				require.NoError(t, tape.Close())
				return value, grad
			}
			value, grad := run(true)
			v, g := run(false)
			assert.Equal(t, value, v)
			assert.Equal(t, grad, g)
		})
	}
}

// TestOnceFrees: the operation after Once frees the value, and a second reading is an error.
func TestOnceFrees(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for _, read := range []func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable{
		func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.ReLU(h) },
		func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Transpose(h) },
		func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Detach(h) },
		func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Dropout(h, 0.5) },
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		h := tape.MulScalar(tape.Leaf(x), 2).Once()
		read(tape, h)
		require.NoError(t, tape.Err())
		assert.True(t, h.Value().Released())
		tape.Exp(h)
		require.ErrorIs(t, tape.Err(), tensor.ErrReleased)
		require.ErrorContains(t, tape.Err(), "autograd: Exp: ")
		require.ErrorContains(t, tape.Err(), "had read it: call Once before the last operation that reads it")
		require.Error(t, tape.Close())
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	var none *autograd.Variable
	require.Nil(t, none.Once())
	w := tape.Param(b.Parameter(2, 2))
	y := tape.Mul(w.Once(), tape.Input(x))
	tape.Mul(w, y)
	require.NoError(t, tape.Err(), "a parameter stays")
	require.NoError(t, tape.Close())
}

// TestOverwriteInPlaceIsStale: a value that the program overwrites is stale if a gradient needs it.
func TestOverwriteInPlaceIsStale(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, -2, 3, 4}, 2, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	y := tape.ReLU(tape.MulScalar(tape.Leaf(x), 2).Once())
	require.NoError(t, b.RT.MulScalarInPlace(b.Ctx, y.Value(), 3))
	_, err := tape.Backward(tape.Sum(y))
	require.ErrorIs(t, err, autograd.ErrStale)
	require.ErrorIs(t, tape.Close(), autograd.ErrStale)
}

// TestNoGradWorksInPlace: a chain of operations needs the memory of one value.
func TestNoGradWorksInPlace(t *testing.T) {
	const mib = 1 << 20
	b := tapetest.Open(t, 64*mib)
	x, err := b.RT.Zeros(b.Ctx, tensor.Float32, mib/4)
	require.NoError(t, err)
	b.Cache.ResetPeakStats()
	tape := autograd.NoGrad(b.Ctx, b.RT)
	h := tape.AddScalar(tape.Input(x), 1)
	for range 10 {
		h = tape.GELU(tape.AddScalar(tape.Square(tape.LeakyReLU(h, -0.1)), 1))
	}
	require.NoError(t, tape.Err())
	assert.Equal(t, int64(2*mib), b.Cache.MaxMemoryAllocated()-b.OwnBytes, "the input and one value")
	require.NoError(t, tape.Close())
	require.NoError(t, x.Release())
}
