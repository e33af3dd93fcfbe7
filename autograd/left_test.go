package autograd_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// lossesOfTwo are functions of the parameters p, (2, 2), and q, (2), and of a constant c, (2, 2),
// whose gradients meet in every way: in place, shared, broadcast, of constants.
func lossesOfTwo(labels *tensor.Tensor) map[string]func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
	return map[string]func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable{
		"added in place": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Mul(t.Mul(p, p), t.Mul(p, q))
		},
		"added to what shares": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			h := t.Add(p, q)
			return t.Add(t.Add(h, p), h)
		},
		"shared, then added": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Add(t.Reshape(p, 2, 2), t.Add(q, t.Add(p, p)))
		},
		"shared functions": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Add(t.Add(t.Tanh(p), t.Exp(p)), q)
		},
		"shared and scaled": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Add(t.Add(t.MulScalar(p, 2), t.Neg(p)), t.Neg(q))
		},
		"shared means": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Add(t.Mean(p, 0), t.Mean(t.Square(q)))
		},
		"shared products": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.Add(t.Add(t.LinearReLU(c, p, q), t.LinearReLU(p, c, q)), t.PowScalar(p, 2))
		},
		"shared views": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Add(t.Add(t.Transpose(p), t.Reshape(t.Softmax(p), 2, 2)), t.Div(q, q))
		},
		"of a constant": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.Sub(t.Add(c, p), t.AddBias(c, q))
		},
		"of constants": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.Add(t.Sub(c, q), t.Div(c, p))
		},
		"a divided one": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.Add(t.Div(q, c), t.Div(p, q))
		},
		"broadcast": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable { return t.Mul(p, t.Tanh(q)) },
		"a layer":   func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable { return t.LinearReLU(c, p, q) },
		"a layer of layers": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.LinearReLU(t.Linear(c, p, q), p, q)
		},
		"entropy": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.CrossEntropy(t.Linear(c, p, q), labels)
		},
		"products": func(t *autograd.Tape, p, q, c *autograd.Variable) *autograd.Variable {
			return t.Add(t.MatMul(t.MatMul(p, c, tensor.TransA), p, tensor.TransB), q)
		},
		"rows": func(t *autograd.Tape, p, q, _ *autograd.Variable) *autograd.Variable {
			return t.Mul(t.Softmax(p), t.Transpose(t.PowScalar(t.Add(p, q), 3)))
		},
	}
}

// TestBackwardLeaves only the loss and the gradients, for each of these losses.
func TestBackwardLeaves(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, q := b.Parameter(2, 2), b.Parameter(2)
	labels := tapetest.Upload(b, []int32{1, 0})
	c := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, f := range lossesOfTwo(labels) {
		for range 2 { // the second tape adds to the gradients of the first
			before, _ := b.RT.Live()
			for _, x := range []*autograd.Parameter{p, q} {
				if x.Grad() != nil {
					before--
				}
			}
			tape := autograd.NewTape(b.Ctx, b.RT)
			_, err := tape.Backward(tape.Mean(f(tape, tape.Param(p), tape.Param(q), tape.Input(c))))
			require.NoError(t, err, name)
			now, _ := b.RT.Live()
			assert.Equal(t, before+3, now, "%s: more than the loss and two gradients", name)
			require.NoError(t, tape.Close(), name)
			now, _ = b.RT.Live()
			assert.Equal(t, before+2, now, "%s: more than two gradients", name)
		}
		require.NoError(t, errors.Join(p.ZeroGrad(b.Ctx), q.ZeroGrad(b.Ctx)))
	}
}

// TestLossesWithoutMemory: whichever allocation fails, the parameters have no gradients, and
// nothing leaks.
func TestLossesWithoutMemory(t *testing.T) {
	b := tapetest.Open(t, 2<<20)
	p, q := b.Parameter(2, 2), b.Parameter(2)
	labels := tapetest.Upload(b, []int32{1, 0})
	c := tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, f := range lossesOfTwo(labels) {
		var want [][]float64
		for free := 100; free >= 0; free-- { // at first there is enough
			filler := b.Fill(free)
			before := b.Live()
			tape := autograd.NewTape(b.Ctx, b.RT)
			_, err := tape.Backward(tape.Mean(f(tape, tape.Param(p), tape.Param(q), tape.Input(c))))
			_ = tape.Close()
			for _, block := range filler {
				require.NoError(t, block.Free())
			}
			if err != nil {
				require.ErrorIs(t, err, memcache.ErrOutOfMemory, name)
				require.Nil(t, p.Grad(), "%s, %d free blocks", name, free)
				require.Nil(t, q.Grad(), "%s, %d free blocks", name, free)
				require.LessOrEqual(t, b.Live(), before-int64(len(filler))+1, "%s, %d free blocks (one is the word for faults)", name, free)
				continue
			}
			got := [][]float64{tapetest.Read[float64](b, p.Grad()), tapetest.Read[float64](b, q.Grad())}
			if want == nil {
				want, free = got, 16
			}
			require.Equal(t, want, got, "%s, %d free blocks", name, free)
			require.NoError(t, errors.Join(p.ZeroGrad(b.Ctx), q.ZeroGrad(b.Ctx)))
		}
	}
}

// TestGradientsAreAddedInPlace: adding up takes no memory, unless another tensor shares the
// gradient.
func TestGradientsAreAddedInPlace(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(2)
	backward := func() {
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(p), 3)))
		require.NoError(t, errors.Join(err, tape.Close()))
	}
	before := b.Cache.Stats().Allocation.All.Allocated
	backward()
	assert.Equal(t, before+4, b.Cache.Stats().Allocation.All.Allocated, "3p, the loss, and their gradients: p's is in the memory of 3p's")
	first := p.Grad()
	backward()
	assert.Same(t, first, p.Grad())
	assert.Equal(t, []float64{6, 6}, tapetest.Read[float64](b, p.Grad()))
	shared, err := b.RT.Share(b.Ctx, first)
	require.NoError(t, err)
	backward()
	assert.True(t, first.Released(), "the parameter has another")
	assert.Equal(t, []float64{6, 6}, tapetest.Read[float64](b, shared))
	assert.Equal(t, []float64{9, 9}, tapetest.Read[float64](b, p.Grad()))
	require.NoError(t, shared.Release())
}

// TestASharedGradientSurvivesAnError: the tape had added to it, in other memory, before it failed.
func TestASharedGradientSurvivesAnError(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, w := b.Parameter(2), b.Parameter(2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(tape.Param(p)))
	require.NoError(t, errors.Join(err, tape.Close()))
	first := p.Grad()
	shared, err := b.RT.Share(b.Ctx, first)
	require.NoError(t, err)

	tape = autograd.NewTape(b.Ctx, b.RT)
	late := tape.Square(tape.Param(w))
	loss := tape.Sum(tape.Add(late, tape.MulScalar(tape.Param(p), 2)))
	require.NoError(t, b.RT.MulScalarInPlace(b.Ctx, w.Value(), 2))
	_, err = tape.Backward(loss)
	require.ErrorIs(t, err, autograd.ErrStale)
	require.Error(t, tape.Close())
	assert.Same(t, first, p.Grad())
	assert.Equal(t, []float64{1, 1}, tapetest.Read[float64](b, p.Grad()))
	assert.Nil(t, w.Grad())
	require.NoError(t, shared.Release())
}

// TestEverySavedValueIsChecked, not only an operation's first.
func TestEverySavedValueIsChecked(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for i := range 2 {
		ps := []*autograd.Parameter{b.Parameter(2, 2), b.Parameter(2, 2)}
		for name, f := range map[string]func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable{
			"Mul":    (*autograd.Tape).Mul,
			"MatMul": func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.MatMul(x, y) },
			"Linear": func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.Linear(x, y, nil) },
		} {
			tape := autograd.NewTape(b.Ctx, b.RT)
			loss := tape.Sum(f(tape, tape.Param(ps[0]), tape.Param(ps[1])))
			require.NoError(t, b.RT.Zero(b.Ctx, ps[i].Value()))
			_, err := tape.Backward(loss)
			require.ErrorIs(t, err, autograd.ErrStale, name)
			require.ErrorContains(t, err, "a parameter, float64 (2, 2), is at version", name)
			_ = tape.Close()
		}
	}
}

// peakOfBackward returns the peak of blocks in the backward pass of the loss, beyond those before
// it.
func peakOfBackward(b *tapetest.Bench, tape *autograd.Tape, loss *autograd.Variable) int64 {
	b.T.Helper()
	before := b.Cache.Stats().Allocation.All.Current
	b.Cache.ResetPeakStats()
	_, err := tape.Backward(loss)
	require.NoError(b.T, errors.Join(err, tape.Err()))
	return b.Cache.Stats().Allocation.All.Peak - before
}

// TestPeaksAndAllocationsOfBackward: the values that one gradient reads are freed before the next
// one is computed.
func TestPeaksAndAllocationsOfBackward(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	b.NeedsHost("the first product takes a workspace elsewhere")
	p, q := b.Parameter(2, 2), b.Parameter(2, 2)
	for name, c := range map[string]struct {
		f                 func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable
		peak, allocations int64
	}{
		"PowScalar": {func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.PowScalar(x, 3) }, 2, 3},
		"Square":    {func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.Square(x) }, 2, 2},
		"ReLU":      {func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.ReLU(x) }, 2, 2},
		"Mul":       {(*autograd.Tape).Mul, 2, 4},
		"MatMul":    {func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.MatMul(x, y) }, 2, 4},
		"Linear":    {func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.Linear(x, y, nil) }, 2, 4},
		"Div":       {(*autograd.Tape).Div, 2, 4},
		"Tanh":      {func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.Tanh(t.Tanh(x)) }, 2, 2},
		"Softmax":   {func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.Softmax(t.Softmax(x)) }, 2, 4},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		x, y := tape.MulScalar(tape.Param(p), 2), tape.MulScalar(tape.Param(q), 3)
		z := c.f(tape, x, y)
		loss := tape.Sum(z)
		x.Release()
		y.Release()
		z.Release()
		before := b.Cache.Stats().Allocation.All.Allocated
		peak := peakOfBackward(b, tape, loss)
		assert.Equal(t, c.peak, peak, "%s: blocks at the peak beyond those of the forward pass", name)
		assert.Equal(t, c.allocations, b.Cache.Stats().Allocation.All.Allocated-before, "%s: allocations", name)
		require.NoError(t, tape.Close())
		require.NoError(t, errors.Join(p.ZeroGrad(b.Ctx), q.ZeroGrad(b.Ctx)))
	}
}

// TestNothingIsComputedForConstants: the backward pass allocates only for the parameter's own
// gradient.
func TestNothingIsComputedForConstants(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	b.NeedsHost("the first product takes a workspace elsewhere")
	p, c := b.Parameter(2, 2), tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, x := range map[string]struct {
		f           func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable
		allocations int64
	}{
		"Add":       {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Add(c, p) }, 2},
		"minuend":   {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Sub(p, c) }, 2},
		"Mul":       {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Mul(p, c) }, 3},
		"other Mul": {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Mul(c, p) }, 3},
		"dividend":  {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Div(p, c) }, 3},
		"MatMul":    {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.MatMul(p, c) }, 3},
		"right":     {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.MatMul(c, p) }, 3},
		"weight":    {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Linear(c, p, nil) }, 3},
		"input":     {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Linear(p, c, nil) }, 3},
		"bias": {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable {
			return t.AddBias(p, t.Reshape(t.Sum(c, 0), 2))
		}, 2},
		"scaled": {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.MulScalar(t.Neg(p), 3) }, 2},
		"mean":   {func(t *autograd.Tape, p, c *autograd.Variable) *autograd.Variable { return t.Mean(p, 0) }, 3},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		loss := tape.Sum(x.f(tape, tape.Param(p), tape.Input(c)))
		before := b.Cache.Stats().Allocation.All.Allocated
		_, err := tape.Backward(loss)
		require.NoError(t, err, name)
		assert.Equal(t, x.allocations, b.Cache.Stats().Allocation.All.Allocated-before, name)
		require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.Ctx)))
	}
}

// TestALayerKeepsNoMoreThanItsGradientsNeed: a first layer keeps the input and the rectified
// output, and a layer with a constant weight keeps the weight.
func TestALayerKeepsNoMoreThanItsGradientsNeed(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, c := b.Parameter(2, 2), tapetest.Upload(b, []float64{1, 2, 3, 4}, 2, 2)
	for name, x := range map[string]struct {
		f    func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable
		kept bool
	}{
		"Add":             {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Add(h, h) }, false},
		"MulScalar":       {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.MulScalar(h, 2) }, false},
		"Sum":             {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Sum(h) }, false},
		"ReLU":            {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.ReLU(h) }, false},
		"Sqrt":            {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Sqrt(h) }, false},
		"Log":             {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Log(h) }, true},
		"PowScalar":       {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.PowScalar(h, 3) }, true},
		"Softmax":         {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Softmax(h) }, false},
		"Tanh":            {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Tanh(h) }, false},
		"Square":          {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Square(h) }, true},
		"constant factor": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Mul(h, t.Input(c)) }, false},
		"factor":          {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Mul(h, t.Param(p)) }, true},
		"dividend":        {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Div(h, t.Param(p)) }, false},
		"divisor":         {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Div(t.Input(c), h) }, true},
		"constant weight": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.LinearReLU(h, t.Input(c), nil)
		}, false},
		"weight":          {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.Linear(h, t.Param(p), nil) }, true},
		"constant matrix": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable { return t.MatMul(h, t.Input(c)) }, false},
		"matrix": {func(t *autograd.Tape, h *autograd.Variable) *autograd.Variable {
			return t.MatMul(t.Param(p), h, tensor.TransA)
		}, true},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		h := tape.AddScalar(tape.Param(p), 1)
		x.f(tape, h)
		h.Release()
		require.NoError(t, tape.Err(), name)
		assert.Equal(t, !x.kept, h.Value().Released(), name)
		require.NoError(t, tape.Close())
	}
}

// TestCrossEntropyReusesTheLogits for its gradient, if no other tensor shares them.
func TestCrossEntropyReusesTheLogits(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	b.NeedsHost("a GPU makes the gradient of few logits with the loss")
	p, labels := b.Parameter(2, 2), tapetest.Upload(b, []int32{1, 0})
	for name, c := range map[string]struct {
		logits func(t *autograd.Tape) *autograd.Variable
		peak   int64 // the loss's gradient and, if they are not reused, that of the logits
	}{
		"reused":    {func(t *autograd.Tape) *autograd.Variable { return t.MulScalar(t.Param(p), 2) }, 1},
		"kept":      {func(t *autograd.Tape) *autograd.Variable { return t.MulScalar(t.Param(p), 2).Keep() }, 2},
		"parameter": {func(t *autograd.Tape) *autograd.Variable { return t.Param(p) }, 2},
		"a view":    {func(t *autograd.Tape) *autograd.Variable { return t.Reshape(t.MulScalar(t.Param(p), 2).Keep(), 2, 2) }, 2},
	} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		logits := c.logits(tape)
		loss := tape.CrossEntropy(logits, labels)
		assert.Equal(t, c.peak, peakOfBackward(b, tape, loss), name)
		if name == "kept" {
			assert.Equal(t, []float64{2, 4, 6, 8}, tapetest.Read[float64](b, logits.Value()))
		}
		assert.InDeltaSlice(t, []float64{1, 2, 3, 4}, tapetest.Read[float64](b, p.Value()), 0, name)
		require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.Ctx)))
	}
}
