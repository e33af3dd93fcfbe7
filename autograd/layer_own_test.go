package autograd

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// gated is a layer of a program's own. inside sees its argument and what it has made.
type gated struct {
	Weight, Gate *Parameter
	inside       func(x, product *Variable)
}

func (l *gated) Forward(t *Tape, x *Variable) *Variable {
	return t.Layer(l.Weight, "weight", func() *Variable {
		product := t.Linear(x, t.Param(l.Weight), nil)
		y := t.Mul(product, t.Sigmoid(t.Linear(x.Once(), t.Param(l.Gate), nil)))
		if l.inside != nil {
			l.inside(x, product)
		}
		return y
	})
}

func (l *gated) Parameters() Parameters { return Parameters{{"weight", l.Weight}, {"gate", l.Gate}} }

// TestLayerOfAProgram: a layer borrows its argument, also where Once is called inside, and frees
// its inner values when it ends. On a tape of NoGrad the first reader of the result frees it.
func TestLayerOfAProgram(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 1, 2)
	l := &gated{Weight: b.parameter(3, 2), Gate: b.parameter(3, 2)}
	model := Sequential{l, ReLU{}}
	require.NoError(t, NameModules(model))
	for _, record := range []bool{true, false} {
		tape := newTape(b.ctx, b.rt, record)
		h := tape.AddScalar(tape.Input(x), 1)
		var between *Variable
		l.inside = func(x, product *Variable) {
			between = product
			require.Equal(t, "0", tape.module.path)
			require.False(t, x.Value().Released(), "Once counts for the layer's own values")
			require.False(t, product.Value().Released(), "until the layer ends")
		}
		before := b.live()
		y := l.Forward(tape, h)
		require.NoError(t, tape.Err())
		require.Equal(t, !record, between.Value().Released(), "unless a gradient needs it")
		require.True(t, between.released())
		if !record {
			require.Equal(t, before+1, b.live(), "the result")
		}
		require.Zero(t, tape.scope)
		require.Empty(t, tape.module.path)
		tape.Add(tape.Exp(h.Keep()), tape.Sum(y))
		require.NoError(t, tape.Err(), "the argument is read again")
		require.Equal(t, !record, y.Value().Released())
		require.NoError(t, tape.Close())
	}
	l.inside = nil
	modules := map[string]bool{}
	tape := NewTape(b.ctx, b.rt)
	y := model.Forward(tape, tape.Input(x))
	for _, holding := range b.cache.Profile().Holdings {
		modules[holding.Module] = true
	}
	require.True(t, modules["0"], "what the gradients need: %v", modules)
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
}

// TestLayerRefuses nil, and lets a layer without a parameter run in the tape's module.
func TestLayerRefuses(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 1, 2)
	for want, run := range map[string]func(t *Tape, h *Variable) *Variable{
		"the function is nil":       func(t *Tape, h *Variable) *Variable { return t.Layer(nil, "", nil) },
		"the function returned nil": func(t *Tape, h *Variable) *Variable { return t.Layer(nil, "", func() *Variable { return nil }) },
	} {
		tape := NewTape(b.ctx, b.rt)
		require.NotNil(t, run(tape, tape.Input(x)))
		require.EqualError(t, tape.Close(), "autograd: Layer: invalid argument: "+want)
	}
	tape := NewTape(b.ctx, b.rt)
	h := tape.Add(tape.Input(x), nil)
	require.NotNil(t, tape.Layer(nil, "", func() *Variable { return tape.Reshape(h, h.Shape()[0]) }), "an inert argument")
	require.Error(t, tape.Close())
	tape = NewTape(b.ctx, b.rt)
	h = tape.Input(x)
	tape.Module("outer", func() *Variable {
		return tape.Layer(nil, "weight", func() *Variable {
			assert.Equal(t, "outer", tape.module.path)
			return tape.Exp(h)
		})
	})
	require.PanicsWithValue(t, "inside", func() { tape.Layer(nil, "", func() *Variable { panic("inside") }) })
	require.Zero(t, tape.scope, "after a panic")
	require.NoError(t, tape.Close())
}

// reads is a layer that reads its argument as often as it says, without a scope of its own.
type reads struct {
	unnamed
	times int
}

func (l reads) Forward(t *Tape, x *Variable) *Variable {
	y := t.Exp(x)
	for range l.times - 1 {
		y = t.Add(t.Exp(x), y)
	}
	return y
}

// TestLastReader is the operation that ends the program's hold, in its scope and after inner ones.
func TestLastReader(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 1, 2)
	for name, c := range map[string]struct {
		run   func(t *Tape, h *Variable) *Variable
		freed [2]bool // the argument: on a tape of NoGrad, on one that records
	}{
		"an operation":        {func(t *Tape, h *Variable) *Variable { return t.Neg(h) }, [2]bool{true, false}},
		"Once":                {func(t *Tape, h *Variable) *Variable { return t.Neg(h.Once()) }, [2]bool{true, true}},
		"Once in a frame":     {func(t *Tape, h *Variable) *Variable { return t.Frame(func() *Variable { return t.Neg(h.Once()) }) }, [2]bool{true, true}},
		"Once before a frame": {func(t *Tape, h *Variable) *Variable { h.Once(); return t.Frame(func() *Variable { return t.Neg(h) }) }, [2]bool{}},
		"Once after a frame":  {func(t *Tape, h *Variable) *Variable { t.Frame(func() *Variable { return h.Once() }); return t.Neg(h) }, [2]bool{true, true}},
		"Once before a layer": {func(t *Tape, h *Variable) *Variable { return ReLU{}.Forward(t, h.Once()) }, [2]bool{}},
		"Once in a layer": {func(t *Tape, h *Variable) *Variable {
			return t.Layer(nil, "", func() *Variable { return t.Neg(h.Once()) })
		}, [2]bool{}},
		"Once in a layer's frame": {func(t *Tape, h *Variable) *Variable {
			return t.Layer(nil, "", func() *Variable { return t.Frame(func() *Variable { return t.Neg(h.Once()) }) })
		}, [2]bool{}},
		"Split": {func(t *Tape, h *Variable) *Variable { return t.Split(h.Once(), 1, 1)[1] }, [2]bool{true, true}},
		"layers of operations": {func(t *Tape, h *Variable) *Variable {
			return Sequential{reads{times: 3}, reads{times: 2}, ReLU{}, reads{times: 2}}.Forward(t, h)
		}, [2]bool{}},
		"layers in layers": {func(t *Tape, h *Variable) *Variable {
			return Sequential{Sequential{Sequential{ReLU{}}, reads{times: 2}}, Sequential{reads{times: 2}}}.Forward(t, h)
		}, [2]bool{}},
		"layers of nothing": {func(t *Tape, h *Variable) *Variable {
			return Sequential{Identity{}, Sequential{Identity{}}}.Forward(t, h).Keep()
		}, [2]bool{}},
		"a checkpoint":         {func(t *Tape, h *Variable) *Variable { return t.Checkpoint(func() *Variable { return t.Neg(h) }) }, [2]bool{}},
		"a checkpointed layer": {func(t *Tape, h *Variable) *Variable { return Checkpointed(reads{times: 2}).Forward(t, h) }, [2]bool{}},
	} {
		for i, record := range []bool{false, true} {
			tape := newTape(b.ctx, b.rt, record)
			h := tape.AddScalar(tape.Leaf(x), 1)
			y := c.run(tape, h)
			require.NoError(t, tape.Err(), name)
			require.Equal(t, c.freed[i], h.released(), "%s, recorded %v", name, record)
			if record {
				tape.Mul(tape.Exp(y), y)
				require.NoError(t, tape.Err(), "%s: the result is read twice", name)
			}
			require.NoError(t, tape.Close())
		}
	}
	tape := NewTape(b.ctx, b.rt)
	tape.SetTraining(false)
	y := Sequential{reads{times: 1}, Dropout{P: 0.5}, Identity{}}.Forward(tape, tape.Leaf(x))
	tape.Mul(tape.Exp(y), y)
	require.NoError(t, tape.Close(), "a layer without an effect returns its argument")
}

// TestCheckpointReadsWhatWasReleased again, because its region holds it.
func TestCheckpointReadsWhatWasReleased(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 1, 2)
	tape := NewTape(b.ctx, b.rt)
	h := tape.AddScalar(tape.Leaf(x), 1)
	y := tape.Checkpoint(func() *Variable { return tape.Mul(tape.Exp(h), h.Once()) })
	require.True(t, h.released())
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, err)
	require.True(t, h.Value().Released())
	require.NoError(t, tape.Close())
}
