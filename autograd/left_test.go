package autograd

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// parameter is one of float64, with the elements 1, 2, ….
func (b *bench) parameter(shape ...int) *Parameter {
	b.t.Helper()
	data := zeros(shape...).data
	for i := range data {
		data[i] = float64(i + 1)
	}
	p, err := NewParameter(upload(b, data, shape...))
	require.NoError(b.t, err)
	b.t.Cleanup(func() { assert.NoError(b.t, p.ZeroGrad(b.ctx)) })
	return p
}

// lossesOfTwo are functions of the parameters p, (2, 2), and q, (2), and of a constant c, (2, 2), whose gradients meet in
// every way: in place, shared, broadcast, of constants.
func lossesOfTwo(labels *tensor.Tensor) map[string]func(t *Tape, p, q, c *Variable) *Variable {
	return map[string]func(t *Tape, p, q, c *Variable) *Variable{
		"added in place":       func(t *Tape, p, q, _ *Variable) *Variable { return t.Mul(t.Mul(p, p), t.Mul(p, q)) },
		"added to what shares": func(t *Tape, p, q, _ *Variable) *Variable { h := t.Add(p, q); return t.Add(t.Add(h, p), h) },
		"shared, then added": func(t *Tape, p, q, _ *Variable) *Variable {
			return t.Add(t.Reshape(p, 2, 2), t.Add(q, t.Add(p, p)))
		},
		"of a constant":     func(t *Tape, p, q, c *Variable) *Variable { return t.Sub(t.Add(c, p), t.AddBias(c, q)) },
		"of constants":      func(t *Tape, p, q, c *Variable) *Variable { return t.Add(t.Sub(c, q), t.Div(c, p)) },
		"a divided one":     func(t *Tape, p, q, c *Variable) *Variable { return t.Add(t.Div(q, c), t.Div(p, q)) },
		"broadcast":         func(t *Tape, p, q, _ *Variable) *Variable { return t.Mul(p, t.Tanh(q)) },
		"a layer":           func(t *Tape, p, q, c *Variable) *Variable { return t.LinearReLU(c, p, q) },
		"a layer of layers": func(t *Tape, p, q, c *Variable) *Variable { return t.LinearReLU(t.Linear(c, p, q), p, q) },
		"entropy":           func(t *Tape, p, q, c *Variable) *Variable { return t.CrossEntropy(t.Linear(c, p, q), labels) },
		"products": func(t *Tape, p, q, c *Variable) *Variable {
			return t.Add(t.MatMul(t.MatMul(p, c, true, false), p, false, true), q)
		},
		"rows": func(t *Tape, p, q, _ *Variable) *Variable {
			return t.Mul(t.Softmax(p), t.Transpose(t.Pow(t.Add(p, q), 3)))
		},
	}
}

// TestWhatBackwardLeaves: the loss and the gradients, of each of these losses.
func TestWhatBackwardLeaves(t *testing.T) {
	b := open(t, 64<<20)
	p, q := b.parameter(2, 2), b.parameter(2)
	labels := upload(b, []int32{1, 0})
	c := upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, f := range lossesOfTwo(labels) {
		for range 2 { // the second tape adds to the gradients of the first
			before, _ := b.rt.Live()
			for _, x := range []*Parameter{p, q} {
				if x.Grad() != nil {
					before--
				}
			}
			tape := NewTape(b.ctx, b.rt)
			_, err := tape.Backward(tape.Mean(f(tape, tape.Param(p), tape.Param(q), tape.Input(c))))
			require.NoError(t, err, name)
			now, _ := b.rt.Live()
			assert.Equal(t, before+3, now, "%s: more than the loss and two gradients", name)
			require.NoError(t, tape.Close(), name)
			now, _ = b.rt.Live()
			assert.Equal(t, before+2, now, "%s: more than two gradients", name)
		}
		require.NoError(t, errors.Join(p.ZeroGrad(b.ctx), q.ZeroGrad(b.ctx)))
	}
}

// TestLossesWithoutMemory: whichever allocation fails, the parameters have no gradients, and nothing stays.
func TestLossesWithoutMemory(t *testing.T) {
	b := open(t, 2<<20)
	p, q := b.parameter(2, 2), b.parameter(2)
	labels := upload(b, []int32{1, 0})
	c := upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, f := range lossesOfTwo(labels) {
		var want [][]float64
		for free := 100; free >= 0; free-- { // at first there is enough
			filler := b.fill(free)
			before := b.live()
			tape := NewTape(b.ctx, b.rt)
			_, err := tape.Backward(tape.Mean(f(tape, tape.Param(p), tape.Param(q), tape.Input(c))))
			_ = tape.Close()
			for _, block := range filler {
				require.NoError(t, block.Free())
			}
			if err != nil {
				require.ErrorIs(t, err, memcache.ErrOutOfMemory, name)
				require.Nil(t, p.Grad(), "%s, %d free blocks", name, free)
				require.Nil(t, q.Grad(), "%s, %d free blocks", name, free)
				require.LessOrEqual(t, b.live(), before-int64(len(filler))+1, "%s, %d free blocks (one is the word for faults)", name, free)
				continue
			}
			got := [][]float64{read[float64](b, p.Grad()), read[float64](b, q.Grad())}
			if want == nil {
				want, free = got, 16
			}
			require.Equal(t, want, got, "%s, %d free blocks", name, free)
			require.NoError(t, errors.Join(p.ZeroGrad(b.ctx), q.ZeroGrad(b.ctx)))
		}
	}
}

// TestGradientsAreAddedInPlace, so that adding up takes no memory; unless somebody shares them.
func TestGradientsAreAddedInPlace(t *testing.T) {
	b := open(t, 64<<20)
	p := b.parameter(2)
	backward := func() {
		tape := NewTape(b.ctx, b.rt)
		_, err := tape.Backward(tape.Sum(tape.Scale(tape.Param(p), 3)))
		require.NoError(t, errors.Join(err, tape.Close()))
	}
	before := b.cache.Stats().Allocation.All.Allocated
	backward()
	assert.Equal(t, before+4, b.cache.Stats().Allocation.All.Allocated, "3p, the loss, and their gradients: p's is in the memory of 3p's")
	first := p.Grad()
	backward()
	assert.Same(t, first, p.Grad())
	assert.Equal(t, []float64{6, 6}, read[float64](b, p.Grad()))
	shared, err := b.rt.Share(b.ctx, first)
	require.NoError(t, err)
	backward()
	assert.True(t, first.Released(), "the parameter has another")
	assert.Equal(t, []float64{6, 6}, read[float64](b, shared))
	assert.Equal(t, []float64{9, 9}, read[float64](b, p.Grad()))
	require.NoError(t, shared.Release())
}

// TestASharedGradientSurvivesAnError: the tape had added to it, in other memory, when it failed.
func TestASharedGradientSurvivesAnError(t *testing.T) {
	b := open(t, 64<<20)
	p, w := b.parameter(2), b.parameter(2)
	tape := NewTape(b.ctx, b.rt)
	_, err := tape.Backward(tape.Sum(tape.Param(p)))
	require.NoError(t, errors.Join(err, tape.Close()))
	first := p.Grad()
	shared, err := b.rt.Share(b.ctx, first)
	require.NoError(t, err)

	tape = NewTape(b.ctx, b.rt)
	late := tape.Square(tape.Param(w))
	loss := tape.Sum(tape.Add(late, tape.Scale(tape.Param(p), 2)))
	require.NoError(t, b.rt.MulScalarInPlace(b.ctx, w.Value(), 2))
	_, err = tape.Backward(loss)
	require.ErrorIs(t, err, ErrStale)
	require.Error(t, tape.Close())
	assert.Same(t, first, p.Grad())
	assert.Equal(t, []float64{1, 1}, read[float64](b, p.Grad()))
	assert.Nil(t, w.Grad())
	require.NoError(t, shared.Release())
}

// TestEverySavedValueIsLookedAt, not only an operation's first.
func TestEverySavedValueIsLookedAt(t *testing.T) {
	b := open(t, 64<<20)
	for i := range 2 {
		ps := []*Parameter{b.parameter(2, 2), b.parameter(2, 2)}
		for name, f := range map[string]func(t *Tape, x, y *Variable) *Variable{
			"Mul":    (*Tape).Mul,
			"MatMul": func(t *Tape, x, y *Variable) *Variable { return t.MatMul(x, y, false, false) },
			"Linear": func(t *Tape, x, y *Variable) *Variable { return t.Linear(x, y, nil) },
		} {
			tape := NewTape(b.ctx, b.rt)
			loss := tape.Sum(f(tape, tape.Param(ps[0]), tape.Param(ps[1])))
			require.NoError(t, b.rt.Zero(b.ctx, ps[i].Value()))
			_, err := tape.Backward(loss)
			require.ErrorIs(t, err, ErrStale, name)
			require.ErrorContains(t, err, "a parameter, float64 (2, 2), is at version", name)
			_ = tape.Close()
		}
	}
}

// peakOfBackward is how many blocks are allocated at most while the loss runs backward, beyond those before it.
func (b *bench) peakOfBackward(tape *Tape, loss *Variable) int64 {
	b.t.Helper()
	before := b.cache.Stats().Allocation.All.Current
	b.cache.ResetPeakStats()
	_, err := tape.Backward(loss)
	require.NoError(b.t, errors.Join(err, tape.Err()))
	return b.cache.Stats().Allocation.All.Peak - before
}

// TestPeakOfALinearLayer: what one gradient has read is freed before the next one is computed.
func TestPeakOfALinearLayer(t *testing.T) {
	b := open(t, 64<<20)
	p, q := b.parameter(2, 2), b.parameter(2, 2)
	for name, c := range map[string]struct {
		f    func(t *Tape, x, y *Variable) *Variable
		peak int64
	}{
		"Mul":     {(*Tape).Mul, 1},
		"MatMul":  {func(t *Tape, x, y *Variable) *Variable { return t.MatMul(x, y, false, false) }, 1},
		"Linear":  {func(t *Tape, x, y *Variable) *Variable { return t.Linear(x, y, nil) }, 1},
		"Div":     {(*Tape).Div, 0},
		"Tanh":    {func(t *Tape, x, _ *Variable) *Variable { return t.Tanh(t.Tanh(x)) }, 0},
		"Softmax": {func(t *Tape, x, _ *Variable) *Variable { return t.Softmax(t.Softmax(x)) }, 0},
	} {
		tape := NewTape(b.ctx, b.rt)
		x, y := tape.Scale(tape.Param(p), 2), tape.Scale(tape.Param(q), 3)
		z := c.f(tape, x, y)
		loss := tape.Sum(z)
		x.Release()
		y.Release()
		z.Release()
		assert.LessOrEqual(t, b.peakOfBackward(tape, loss), c.peak+2, "%s: blocks beyond those of the forward pass", name)
		require.NoError(t, tape.Close())
		require.NoError(t, errors.Join(p.ZeroGrad(b.ctx), q.ZeroGrad(b.ctx)))
	}
}

// TestALayerKeepsNoMoreThanItsGradientsNeed: of a first layer the input and the rectified output, of one whose weight is
// constant the weight.
func TestALayerKeepsNoMoreThanItsGradientsNeed(t *testing.T) {
	b := open(t, 64<<20)
	p, c := b.parameter(2, 2), upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, x := range map[string]struct {
		f    func(t *Tape, h *Variable) *Variable
		kept bool
	}{
		"Add":             {func(t *Tape, h *Variable) *Variable { return t.Add(h, h) }, false},
		"Scale":           {func(t *Tape, h *Variable) *Variable { return t.Scale(h, 2) }, false},
		"Sum":             {func(t *Tape, h *Variable) *Variable { return t.Sum(h) }, false},
		"Tanh":            {func(t *Tape, h *Variable) *Variable { return t.Tanh(h) }, false},
		"Square":          {func(t *Tape, h *Variable) *Variable { return t.Square(h) }, true},
		"constant factor": {func(t *Tape, h *Variable) *Variable { return t.Mul(h, t.Input(c)) }, false},
		"factor":          {func(t *Tape, h *Variable) *Variable { return t.Mul(h, t.Param(p)) }, true},
		"dividend":        {func(t *Tape, h *Variable) *Variable { return t.Div(h, t.Param(p)) }, false},
		"divisor":         {func(t *Tape, h *Variable) *Variable { return t.Div(t.Input(c), h) }, true},
		"constant weight": {func(t *Tape, h *Variable) *Variable { return t.LinearReLU(h, t.Input(c), nil) }, false},
		"weight":          {func(t *Tape, h *Variable) *Variable { return t.Linear(h, t.Param(p), nil) }, true},
		"constant matrix": {func(t *Tape, h *Variable) *Variable { return t.MatMul(h, t.Input(c), false, false) }, false},
		"matrix":          {func(t *Tape, h *Variable) *Variable { return t.MatMul(t.Param(p), h, true, false) }, true},
	} {
		tape := NewTape(b.ctx, b.rt)
		h := tape.AddScalar(tape.Param(p), 1)
		x.f(tape, h)
		h.Release()
		require.NoError(t, tape.Err(), name)
		assert.Equal(t, !x.kept, h.Value().Released(), name)
		require.NoError(t, tape.Close())
	}
}

// TestCrossEntropyReusesTheLogits for its gradient, if nobody else has them.
func TestCrossEntropyReusesTheLogits(t *testing.T) {
	b := open(t, 64<<20)
	p, labels := b.parameter(2, 2), upload(b, []int32{1, 0})
	for name, c := range map[string]struct {
		logits func(t *Tape) *Variable
		peak   int64 // the loss's gradient and, if they are not reused, that of the logits
	}{
		"reused":    {func(t *Tape) *Variable { return t.Scale(t.Param(p), 2) }, 1},
		"kept":      {func(t *Tape) *Variable { return t.Scale(t.Param(p), 2).Keep() }, 2},
		"parameter": {func(t *Tape) *Variable { return t.Param(p) }, 2},
		"a view":    {func(t *Tape) *Variable { return t.Reshape(t.Scale(t.Param(p), 2).Keep(), 2, 2) }, 2},
	} {
		tape := NewTape(b.ctx, b.rt)
		logits := c.logits(tape)
		loss := tape.CrossEntropy(logits, labels)
		assert.Equal(t, c.peak, b.peakOfBackward(tape, loss), name)
		if name == "kept" {
			assert.Equal(t, []float64{2, 4, 6, 8}, read[float64](b, logits.Value()))
		}
		assert.InDeltaSlice(t, []float64{1, 2, 3, 4}, read[float64](b, p.Value()), 0, name)
		require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.ctx)))
	}
}

// TestFreesThatFailAreErrors of the tape: here a block that the program freed behind its back.
func TestFreesThatFailAreErrors(t *testing.T) {
	for name, end := range map[string]func(tape *Tape, v *Variable) error{
		"Release": func(tape *Tape, v *Variable) error { v.Release(); return tape.Err() },
		"Close":   func(tape *Tape, _ *Variable) error { return tape.Close() },
	} {
		b := open(t, 64<<20)
		tape := NewTape(b.ctx, b.rt)
		v := tape.Exp(tape.Input(upload(b, []float64{1})))
		require.NoError(t, v.Value().Block().Free())
		err := end(tape, v)
		require.ErrorIs(t, err, memcache.ErrFreed, name)
		require.ErrorContains(t, err, "autograd: ", name)
		require.Error(t, tape.Close(), name)
	}
}

// TestErrorsAfterTheFirst are not told, and nothing is done.
func TestErrorsAfterTheFirst(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1})
	tape := NewTape(b.ctx, b.rt)
	v := tape.Leaf(x)
	tape.Reshape(v, 2)
	first := tape.Err()
	require.ErrorIs(t, first, tensor.ErrShape)
	before := b.cache.Stats().Allocation.All.Allocated
	assert.Nil(t, tape.Exp(nil).Value())
	assert.Nil(t, tape.Exp(v).Value())
	assert.Nil(t, tape.Leaf(x).Value())
	assert.Nil(t, tape.Param(nil).Value())
	assert.Nil(t, tape.Input(nil).Value())
	var none context.Context
	tape.SetContext(none)
	assert.Equal(t, first, tape.Err())
	assert.Equal(t, before, b.cache.Stats().Allocation.All.Allocated)
	assert.Equal(t, first, tape.Close())
}

// TestReleasedParametersAreRefused, where they come to a tape and as a loss.
func TestReleasedParametersAreRefused(t *testing.T) {
	b := open(t, 64<<20)
	p := b.parameter(1)
	tape := NewTape(b.ctx, b.rt)
	v := tape.Param(p)
	assert.Same(t, v, tape.Param(p))
	require.NoError(t, p.Release())
	_, err := tape.Backward(v)
	require.ErrorIs(t, err, tensor.ErrReleased)
	assert.Nil(t, p.Grad())
	require.Error(t, tape.Close())
	tape = NewTape(b.ctx, b.rt)
	tape.Param(p)
	require.ErrorIs(t, tape.Err(), ErrInvalid)
	require.ErrorContains(t, tape.Err(), "autograd: Param: ")
	require.Error(t, tape.Close())
	tape.Param(b.parameter(1))
	tape = NewTape(b.ctx, b.rt)
	require.NoError(t, tape.Close())
	tape.Param(b.parameter(1))
	require.ErrorIs(t, tape.Err(), ErrSpent)
}

// TestGradOfAParametersVariable is the parameter's, also when that is gone.
func TestGradOfAParametersVariable(t *testing.T) {
	b := open(t, 64<<20)
	p := b.parameter(1)
	tape := NewTape(b.ctx, b.rt)
	v := tape.Param(p)
	h := tape.Scale(v, 2).Keep()
	_, err := tape.Backward(tape.Sum(h))
	require.NoError(t, err)
	assert.Same(t, p.Grad(), v.Grad())
	assert.Nil(t, h.Grad(), "consumed")
	require.NoError(t, p.ZeroGrad(b.ctx))
	assert.Nil(t, v.Grad())
	require.NoError(t, tape.Close())
}

// TestMessagesNameTheOperand and the way out.
func TestMessagesNameTheOperand(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1})
	other := NewTape(b.ctx, b.rt)
	defer other.Close()
	for want, f := range map[string]func(tape *Tape, v *Variable){
		"autograd: Add: variable of another tape: operand 2: bring tensors to this tape with Input, Leaf or Param": func(tape *Tape, v *Variable) {
			tape.Add(v, other.Leaf(x))
		},
		"autograd: Sub: tensor was released: operand 1: release what no later operation reads, or Keep it": func(tape *Tape, v *Variable) {
			h := tape.Exp(v)
			h.Release()
			tape.Sub(h, v)
		},
		"autograd: Backward: no gradient: no parameter or leaf is part of the loss": func(tape *Tape, _ *Variable) {
			_, _ = tape.Backward(tape.Sum(tape.Input(x)))
		},
	} {
		tape := NewTape(b.ctx, b.rt)
		f(tape, tape.Leaf(x))
		assert.EqualError(t, tape.Close(), want)
	}
	tape := NoGrad(b.ctx, b.rt)
	_, err := tape.Backward(tape.Sum(tape.Leaf(x)))
	assert.EqualError(t, err, "autograd: Backward: no gradient: the tape was made with NoGrad")
	require.Error(t, tape.Close())
}

// TestOptimizersAgainstPlainFormulas: three steps with all options, in plain float64.
func TestOptimizersAgainstPlainFormulas(t *testing.T) {
	b := open(t, 64<<20)
	const rate, decay = 0.1, 0.2
	grads := []float64{3, -1, 0.5}
	adam := func(decoupled bool) func() []float64 {
		return func() (ws []float64) {
			w, m, v := 1.0, 0.0, 0.0
			for i, g := range grads {
				if decoupled {
					w -= rate * decay * w
				} else {
					g += decay * w
				}
				m, v = 0.8*m+0.2*g, 0.7*v+0.3*g*g
				n := float64(i + 1)
				w -= rate * m / (1 - math.Pow(0.8, n)) / (math.Sqrt(v/(1-math.Pow(0.7, n))) + 1e-3)
				ws = append(ws, w)
			}
			return ws
		}
	}
	sgd := func(momentum, dampening float64, nesterov bool) func() []float64 {
		return func() (ws []float64) {
			w, buf := 1.0, 0.0
			for i, g := range grads {
				g += decay * w
				if i == 0 {
					buf = g
				} else {
					buf = momentum*buf + (1-dampening)*g
				}
				switch {
				case nesterov:
					g += momentum * buf
				case momentum != 0:
					g = buf
				}
				w -= rate * g
				ws = append(ws, w)
			}
			return ws
		}
	}
	cfg := AdamConfig{LR: new(9.0), Beta1: new(0.8), Beta2: new(0.7), Eps: new(1e-3), WeightDecay: decay}
	for name, c := range map[string]struct {
		make func(Parameters) (Optimizer, error)
		want func() []float64
	}{
		"Adam":  {func(ps Parameters) (Optimizer, error) { return NewAdam(ps, cfg) }, adam(false)},
		"AdamW": {func(ps Parameters) (Optimizer, error) { return NewAdamW(ps, cfg) }, adam(true)},
		"SGD":   {func(ps Parameters) (Optimizer, error) { return NewSGD(ps, SGDConfig{LR: new(9.0), WeightDecay: decay}) }, sgd(0, 0, false)},
		"momentum": {func(ps Parameters) (Optimizer, error) {
			return NewSGD(ps, SGDConfig{Momentum: 0.9, Dampening: 0.3, WeightDecay: decay})
		}, sgd(0.9, 0.3, false)},
		"Nesterov": {func(ps Parameters) (Optimizer, error) {
			return NewSGD(ps, SGDConfig{Momentum: 0.9, Nesterov: true, WeightDecay: decay})
		}, sgd(0.9, 0, true)},
	} {
		p := b.parameter(1)
		opt, err := c.make(Parameters{{"p", p}})
		require.NoError(t, err, name)
		require.NoError(t, opt.SetLR(rate))
		assert.Equal(t, rate, opt.LR())
		for round := range 2 { // the second one after Close, which starts anew
			require.NoError(t, tensor.CopyFrom(b.ctx, p.Value(), []float64{1}))
			if round == 1 {
				require.NoError(t, opt.Prepare(b.ctx))
				require.NoError(t, opt.Prepare(b.ctx))
			}
			var got []float64
			for _, g := range grads {
				tape := NewTape(b.ctx, b.rt)
				_, err := tape.Backward(tape.Sum(tape.Scale(tape.Param(p), g)))
				require.NoError(t, errors.Join(err, tape.Close(), opt.Step(b.ctx), opt.ZeroGrad(b.ctx)), name)
				got = append(got, read[float64](b, p.Value())[0])
			}
			assert.InDeltaSlice(t, c.want(), got, 1e-12, "%s, round %d", name, round)
			require.NoError(t, opt.Close())
			require.NoError(t, opt.Close())
		}
	}
}

// TestOptimizersNameParameters in their errors.
func TestOptimizersNameParameters(t *testing.T) {
	b := open(t, 2<<20)
	p, q := b.parameter(1), b.parameter(1)
	opt, err := NewAdam(Parameters{{"first", p}, {"second", q}}, AdamConfig{})
	require.NoError(t, err)
	filler := b.fill(3)
	before := b.live()
	err = opt.Prepare(b.ctx)
	require.ErrorIs(t, err, memcache.ErrOutOfMemory)
	require.ErrorContains(t, err, `autograd: state of parameter "second"`)
	assert.Equal(t, before+2, b.live(), "the first one has its state, the second one nothing")
	for _, block := range filler {
		require.NoError(t, block.Free())
	}
	require.NoError(t, opt.Prepare(b.ctx))
	assert.Len(t, opt.state[1], 2)
	require.NoError(t, opt.Close())
	_, err = NewSGD(Parameters{{"first", p}, {"again", p}}, SGDConfig{})
	require.ErrorContains(t, err, `"first" and "again" are the same`)
	_, err = NewSGD(Parameters{{"first", p}, {"empty", &Parameter{}}}, SGDConfig{})
	require.ErrorIs(t, err, ErrInvalid)
	require.ErrorContains(t, err, `parameter "empty" is nil`)
	require.NoError(t, p.Release())
	q.grad = b.parameter(1).value
	opt, err = NewAdam(Parameters{{"second", q}}, AdamConfig{})
	require.NoError(t, err)
	require.NoError(t, q.value.Release())
	require.ErrorIs(t, opt.Step(b.ctx), tensor.ErrReleased)
	assert.Zero(t, opt.steps[0], "a step that failed")
	require.NoError(t, opt.Close())
}

// TestReleaseFreesGradients and values, of many parameters too, and joins the errors.
func TestReleaseFreesGradients(t *testing.T) {
	b := open(t, 64<<20)
	p, q := b.parameter(2), b.parameter(3)
	ps := Parameters{{"p", p}, {"q", q}}
	tape := NewTape(b.ctx, b.rt)
	_, err := tape.Backward(tape.Add(tape.Sum(tape.Param(p)), tape.Sum(tape.Param(q))))
	require.NoError(t, errors.Join(err, tape.Close()))
	require.Equal(t, int64(4), b.live())
	require.NoError(t, q.grad.Block().Free())
	require.ErrorIs(t, ps.ZeroGrad(b.ctx), memcache.ErrFreed)
	assert.Equal(t, int64(2), b.live(), "p's gradient is freed all the same")
	require.NoError(t, q.value.Block().Free())
	require.ErrorIs(t, ps.Release(), memcache.ErrFreed)
	assert.Zero(t, b.live())
	require.NoError(t, ps.Release())
}

// TestNewLinearWithoutMemory leaves nothing behind, whichever allocation fails.
func TestNewLinearWithoutMemory(t *testing.T) {
	b := open(t, 2<<20)
	for free := range 2 {
		filler := b.fill(free)
		before := b.live()
		_, err := NewLinear(b.ctx, b.rt, gtensor.Float64, 2, 2, NewRand(1))
		require.ErrorIs(t, err, memcache.ErrOutOfMemory)
		assert.Equal(t, before, b.live())
		for _, block := range filler {
			require.NoError(t, block.Free())
		}
	}
}

// TestParametersBelongToNoScope, wherever they are made.
func TestParametersBelongToNoScope(t *testing.T) {
	b := open(t, 64<<20)
	ctx, scope := tensor.Scope(b.ctx)
	l, err := NewLinear(ctx, b.rt, gtensor.Float64, 2, 2, NewRand(1))
	require.NoError(t, err)
	require.NoError(t, scope.Close())
	assert.False(t, l.Weight.Value().Released())
	assert.False(t, l.Bias.Value().Released())
	require.NoError(t, l.Parameters().Release())
}

// identity is a layer that returns its argument, and probe one that looks at it.
type (
	identity struct{}
	probe    struct{ before func(x *Variable) }
)

func (identity) Forward(_ *Tape, x *Variable) *Variable { return x }
func (identity) Parameters() Parameters                 { return nil }
func (p probe) Forward(t *Tape, x *Variable) *Variable  { p.before(x); return t.Tanh(x) }
func (probe) Parameters() Parameters                    { return nil }

// TestIdentityLayer: what a layer passes on is still the next one's.
func TestIdentityLayer(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 1, 2)
	for _, record := range []bool{true, false} {
		tape := newTape(b.ctx, b.rt, record)
		h := tape.Scale(tape.Input(x), 0.5)
		y := Sequential{identity{}, ReLU{}, identity{}, ReLU{}, identity{}}.Forward(tape, h)
		require.NoError(t, tape.Err())
		assert.Equal(t, []float64{0.5, 1}, read[float64](b, y.Value()))
		assert.False(t, h.Value().Released())
		require.NoError(t, tape.Close())
	}
}

// TestSequentialReleasesWhatIsBetween its layers, as soon as the next one has it.
func TestSequentialReleasesWhatIsBetween(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2}, 1, 2)
	for _, record := range []bool{true, false} {
		tape := newTape(b.ctx, b.rt, record)
		var seen []*Variable
		look := probe{func(x *Variable) {
			for _, v := range seen[min(1, len(seen)):] {
				assert.True(t, v.Value().Released(), "the argument of a layer before")
			}
			seen = append(seen, x)
		}}
		Sequential{look, look, look, look}.Forward(tape, tape.Input(x))
		require.NoError(t, tape.Err())
		require.Len(t, seen, 4)
		require.NoError(t, tape.Close())
	}
}

// TestEveryOperationRefuses operands that are nil or of another tape, and a tape that is closed.
func TestEveryOperationRefuses(t *testing.T) {
	b := open(t, 64<<20)
	x := upload(b, []float64{1, 2, 3, 4}, 2, 2)
	row := upload(b, []float64{1, 2})
	p := params{c: 2, axes: []int{0}, shape: []int{4}, labels: []int32{1, 0}}
	other := NewTape(b.ctx, b.rt)
	defer other.Close()
	for _, op := range graphOps {
		operands := func(tape *Tape) []*Variable {
			vs := []*Variable{tape.Leaf(x), tape.Leaf(x), tape.Leaf(row)}
			if op.name == "AddBias" {
				vs[1] = vs[2]
			}
			return vs[:op.arity]
		}
		tape := NewTape(b.ctx, b.rt)
		op.tape(tape, p, operands(tape))
		require.NoError(t, tape.Err(), op.name)
		require.NoError(t, tape.Close())
		for wrong := range op.arity {
			for want, v := range map[error]*Variable{ErrTape: other.Leaf(x), ErrInvalid: nil} {
				if op.name == "LinearReLU" || op.name == "Linear" {
					if wrong == 2 && v == nil {
						continue // no bias
					}
				}
				tape := NewTape(b.ctx, b.rt)
				vs := operands(tape)
				vs[wrong] = v
				y := op.tape(tape, p, vs)
				require.ErrorIs(t, tape.Err(), want, op.name)
				require.Nil(t, y.Value(), op.name)
				require.Error(t, tape.Close())
			}
		}
		tape = NewTape(b.ctx, b.rt)
		vs := operands(tape)
		require.NoError(t, tape.Close())
		y := op.tape(tape, p, vs)
		require.Nil(t, y.Value(), op.name)
		require.ErrorIs(t, tape.Err(), ErrSpent, op.name)
	}
}

// TestABiasAloneIsTrained: the others are constants.
func TestABiasAloneIsTrained(t *testing.T) {
	b := open(t, 64<<20)
	c, p := upload(b, []float64{1, 2, 3, 4}, 2, 2), b.parameter(2)
	for name, f := range map[string]func(t *Tape, c, bias *Variable) *Variable{
		"Linear":     func(t *Tape, c, bias *Variable) *Variable { return t.Linear(c, c, bias) },
		"LinearReLU": func(t *Tape, c, bias *Variable) *Variable { return t.LinearReLU(c, c, bias) },
		"AddBias":    func(t *Tape, c, bias *Variable) *Variable { return t.AddBias(c, bias) },
	} {
		tape := NewTape(b.ctx, b.rt)
		_, err := tape.Backward(tape.Sum(f(tape, tape.Input(c), tape.Param(p))))
		require.NoError(t, err, name)
		assert.Equal(t, []float64{2, 2}, read[float64](b, p.Grad()), name)
		require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.ctx)))
	}
}

// TestStepsThatFail are errors, count nothing, and leave no gradient with the optimiser.
func TestStepsThatFail(t *testing.T) {
	b := open(t, 2<<20)
	for name, make := range optimizers {
		p := b.parameter(1)
		opt, err := make(Parameters{{"p", p}})
		require.NoError(t, err)
		tape := NewTape(b.ctx, b.rt)
		_, err = tape.Backward(tape.Sum(tape.Param(p)))
		require.NoError(t, errors.Join(err, tape.Close()))
		if name != "sgd_lr0_1" { // which has no state
			filler := b.fill(0)
			require.ErrorIs(t, opt.Step(b.ctx), memcache.ErrOutOfMemory, name)
			for _, block := range filler {
				require.NoError(t, block.Free())
			}
		}
		assert.Equal(t, []float64{1}, read[float64](b, p.Value()), name)
		require.NoError(t, opt.Step(b.ctx))
		grad := p.grad
		require.NoError(t, p.ZeroGrad(b.ctx))
		p.grad = grad // which is released
		require.ErrorIs(t, opt.Step(b.ctx), tensor.ErrReleased, name)
		require.ErrorContains(t, opt.Step(b.ctx), "autograd: ", name)
		switch o := opt.(type) {
		case *Adam:
			assert.Equal(t, []int{1}, o.steps, name)
			assert.Nil(t, o.updates[0].G, name)
		case *SGD:
			assert.Equal(t, []int{1}, o.steps, name)
			assert.Nil(t, o.updates[0].G, name)
		}
		p.grad = nil
		require.NoError(t, opt.SetLR(math.MaxFloat64))
		require.NoError(t, opt.SetLR(0))
		require.NoError(t, opt.Close())
	}
}

func TestNewParameterRefuses(t *testing.T) {
	b := open(t, 64<<20)
	_, err := NewParameter(nil)
	require.ErrorIs(t, err, ErrInvalid)
	x := upload(b, []float64{1})
	require.NoError(t, x.Release())
	_, err = NewParameter(x)
	require.ErrorIs(t, err, ErrInvalid)
}
