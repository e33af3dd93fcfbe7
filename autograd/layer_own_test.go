package autograd_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

// gated is a layer of a program's own. inside is called with its argument and its intermediate
// values.
type gated struct {
	Weight, Gate *autograd.Parameter
	inside       func(x, product *autograd.Variable)
}

func (l *gated) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		product := t.Linear(x, t.Param(l.Weight), nil)
		y := t.Mul(product, t.Sigmoid(t.Linear(x.Once(), t.Param(l.Gate), nil)))
		if l.inside != nil {
			l.inside(x, product)
		}
		return y
	})
}

func (l *gated) Parameters() autograd.Parameters {
	return autograd.Parameters{{Name: "weight", Parameter: l.Weight}, {Name: "gate", Parameter: l.Gate}}
}

// TestLayerOfAProgram: a layer borrows its argument, even if it calls Once on it, and frees its
// inner values when it ends. On a tape of NoGrad the first reader of the result frees it.
func TestLayerOfAProgram(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	l := &gated{Weight: b.Parameter(3, 2), Gate: b.Parameter(3, 2)}
	model := nn.Sequential{l, nn.ReLU{}}
	require.NoError(t, nn.NameModules(model))
	for _, record := range []bool{true, false} {
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		h := tape.AddScalar(tape.Input(x), 1)
		var between *autograd.Variable
		l.inside = func(x, product *autograd.Variable) {
			between = product
			require.Equal(t, "0 (gated)", autograd.ModuleOf(tape))
			require.False(t, x.Value().Released(), "Once counts for the layer's own values")
			require.False(t, product.Value().Released(), "until the layer ends")
		}
		before := b.Live()
		y := l.Forward(tape, h)
		require.NoError(t, tape.Err())
		require.Equal(t, !record, between.Value().Released(), "unless a gradient needs it")
		require.True(t, autograd.Released(between))
		if !record {
			require.Equal(t, before+1, b.Live(), "the result")
		}
		require.Zero(t, autograd.ScopeOf(tape))
		require.Empty(t, autograd.ModuleOf(tape))
		tape.Add(tape.Exp(h.Keep()), tape.Sum(y))
		require.NoError(t, tape.Err(), "the argument is read again")
		require.Equal(t, !record, y.Value().Released())
		require.NoError(t, tape.Close())
	}
	l.inside = nil
	modules := map[string]bool{}
	tape := autograd.NewTape(b.Ctx, b.RT)
	y := model.Forward(tape, tape.Input(x))
	for _, holding := range b.Cache.Profile().Holdings {
		modules[holding.Module] = true
	}
	require.True(t, modules["0 (gated)"], "what the gradients need: %v", modules)
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
}

// TestLayerRefuses: a nil function is refused, and a layer without a parameter runs in the tape's
// module.
func TestLayerRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	for want, run := range map[string]func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable{
		"the function is nil": func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Layer(nil, "", nil) },
		"the function returned nil": func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.Layer(nil, "", func() *autograd.Variable { return nil })
		},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		require.NotNil(t, run(tape, tape.Input(x)))
		require.EqualError(t, tape.Close(), "autograd: Layer: invalid argument: "+want)
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	h := tape.Add(tape.Input(x), nil)
	require.NotNil(t, tape.Layer(nil, "", func() *autograd.Variable { return tape.Reshape(h, h.Shape()[0]) }), "an inert argument")
	require.Error(t, tape.Close())
	tape = autograd.NewTape(b.Ctx, b.RT)
	h = tape.Input(x)
	tape.Module("outer", func() *autograd.Variable {
		return tape.Layer(nil, "weight", func() *autograd.Variable {
			assert.Equal(t, "outer", autograd.ModuleOf(tape))
			return tape.Exp(h)
		})
	})
	require.PanicsWithValue(t, "inside", func() { tape.Layer(nil, "", func() *autograd.Variable { panic("inside") }) })
	require.Zero(t, autograd.ScopeOf(tape), "after a panic")
	require.NoError(t, tape.Close())
}

// reads is a layer that reads its argument a given number of times, without a scope of its own.
type reads struct {
	unnamed
	times int
}

func (l reads) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	y := t.Exp(x)
	for range l.times - 1 {
		y = t.Add(t.Exp(x), y)
	}
	return y
}

// TestLastReader is the operation that ends the program's hold, in its scope and after inner ones.
func TestLastReader(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	for name, c := range map[string]struct {
		run   func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable
		freed [2]bool // the argument: on a tape of NoGrad, on one that records
	}{
		"an operation": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Neg(h) }, [2]bool{true, false}},
		"Once":         {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Neg(h.Once()) }, [2]bool{true, true}},
		"Once in a frame": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.Frame(func() *autograd.Variable { return t.Neg(h.Once()) })
		}, [2]bool{true, true}},
		"Once before a frame": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			h.Once()
			return t.Frame(func() *autograd.Variable { return t.Neg(h) })
		}, [2]bool{}},
		"Once after a frame": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			t.Frame(func() *autograd.Variable { return h.Once() })
			return t.Neg(h)
		}, [2]bool{true, true}},
		"Once before a layer": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return nn.ReLU{}.Forward(t, h.Once())
		}, [2]bool{}},
		"Once in a layer": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.Layer(nil, "", func() *autograd.Variable { return t.Neg(h.Once()) })
		}, [2]bool{}},
		"Once in a layer's frame": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.Layer(nil, "", func() *autograd.Variable { return t.Frame(func() *autograd.Variable { return t.Neg(h.Once()) }) })
		}, [2]bool{}},
		"Split": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Split(h.Once(), 1, 1)[1] }, [2]bool{true, true}},
		"layers of operations": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return nn.Sequential{reads{times: 3}, reads{times: 2}, nn.ReLU{}, reads{times: 2}}.Forward(t, h)
		}, [2]bool{}},
		"layers in layers": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return nn.Sequential{nn.Sequential{nn.Sequential{nn.ReLU{}}, reads{times: 2}}, nn.Sequential{reads{times: 2}}}.Forward(t, h)
		}, [2]bool{}},
		"layers of nothing": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return nn.Sequential{nn.Identity{}, nn.Sequential{nn.Identity{}}}.Forward(t, h).Keep()
		}, [2]bool{}},
		"a checkpoint": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return remat.Checkpoint(t, func() *autograd.Variable { return t.Neg(h) })
		}, [2]bool{}},
		"a checkpointed layer": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return remat.Layer(reads{times: 2}).Forward(t, h)
		}, [2]bool{}},
	} {
		for i, record := range []bool{false, true} {
			tape := tapetest.NewTape(b.Ctx, b.RT, record)
			h := tape.AddScalar(tape.Leaf(x), 1)
			y := c.run(tape, h)
			require.NoError(t, tape.Err(), name)
			require.Equal(t, c.freed[i], autograd.Released(h), "%s, recorded %v", name, record)
			if record {
				tape.Mul(tape.Exp(y), y)
				require.NoError(t, tape.Err(), "%s: the result is read twice", name)
			}
			require.NoError(t, tape.Close())
		}
	}
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.SetTraining(false)
	y := nn.Sequential{reads{times: 1}, nn.Dropout{P: 0.5}, nn.Identity{}}.Forward(tape, tape.Leaf(x))
	tape.Mul(tape.Exp(y), y)
	require.NoError(t, tape.Close(), "a layer without an effect returns its argument")
}

// TestCheckpointReadsReleasedValues again, because its region holds them.
func TestCheckpointReadsReleasedValues(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2}, 1, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	h := tape.AddScalar(tape.Leaf(x), 1)
	y := remat.Checkpoint(tape, func() *autograd.Variable { return tape.Mul(tape.Exp(h), h.Once()) })
	require.True(t, autograd.Released(h))
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.True(t, h.Value().Released())
	require.NoError(t, tape.Close())
}
