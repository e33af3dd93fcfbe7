package autograd_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// live is the number of blocks that are allocated.
func TestTheFirstErrorSticks(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, y := tapetest.Upload(b, make([]float32, 6), 2, 3), tapetest.Upload(b, make([]float32, 6), 2, 3)
	before := b.Live()
	tape := autograd.NewTape(b.Ctx, b.RT)
	u, v := tape.Leaf(x), tape.Leaf(y)
	bad := tape.MatMul(u, v)
	assert.Nil(t, bad.Value())
	assert.Nil(t, bad.Shape())
	first := tape.Err()
	require.ErrorIs(t, first, tensor.ErrShape)
	require.ErrorContains(t, first, "autograd: MatMul: tensor: MatMul")
	loss := tape.Sum(tape.ReLU(tape.Linear(bad, u, nil)))
	bad.Release()
	_, err := tape.Backward(loss)
	assert.Equal(t, first, err)
	assert.Equal(t, first, tape.Close())
	assert.Equal(t, first, tape.Close())
	assert.Equal(t, before, b.Live(), "what the tape had made before the error")
}

func TestBackwardRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, make([]float64, 6), 2, 3)
	var none context.Context
	for name, c := range map[string]struct {
		run  func(tape *autograd.Tape) *autograd.Variable
		tape *autograd.Tape
		want error
	}{
		"a loss of six elements": {func(tape *autograd.Tape) *autograd.Variable { return tape.Exp(tape.Leaf(x)) }, autograd.NewTape(b.Ctx, b.RT), tensor.ErrShape},
		"nothing to train":       {func(tape *autograd.Tape) *autograd.Variable { return tape.Sum(tape.Input(x)) }, autograd.NewTape(b.Ctx, b.RT), autograd.ErrNoGrad},
		"no-gradient mode":       {func(tape *autograd.Tape) *autograd.Variable { return tape.Sum(tape.Leaf(x)) }, autograd.NoGrad(b.Ctx, b.RT), autograd.ErrNoGrad},
		"nil":                    {func(tape *autograd.Tape) *autograd.Variable { return nil }, autograd.NewTape(b.Ctx, b.RT), autograd.ErrInvalid},
		"a released loss": {func(tape *autograd.Tape) *autograd.Variable {
			l := tape.MulScalar(tape.Sum(tape.Leaf(x)), 2)
			l.Release()
			return l
		}, autograd.NewTape(b.Ctx, b.RT), tensor.ErrReleased},
		"a variable of another tape": {func(tape *autograd.Tape) *autograd.Variable {
			other := autograd.NewTape(b.Ctx, b.RT)
			defer other.Close()
			return tape.Add(tape.Leaf(x), other.Leaf(x))
		}, autograd.NewTape(b.Ctx, b.RT), autograd.ErrTape},
		"no runtime":   {func(tape *autograd.Tape) *autograd.Variable { return tape.Leaf(x) }, autograd.NewTape(b.Ctx, nil), autograd.ErrInvalid},
		"no context":   {func(tape *autograd.Tape) *autograd.Variable { return tape.Sum(tape.Exp(tape.Leaf(x))) }, autograd.NewTape(none, b.RT), autograd.ErrInvalid},
		"no parameter": {func(tape *autograd.Tape) *autograd.Variable { return tape.Linear(tape.Leaf(x), tape.Param(nil), nil) }, autograd.NewTape(b.Ctx, b.RT), autograd.ErrInvalid},
		"a scalar, flat": {func(tape *autograd.Tape) *autograd.Variable {
			return nn.Flatten{}.Forward(tape, tape.Sum(tape.Leaf(x)))
		}, autograd.NewTape(b.Ctx, b.RT), tensor.ErrShape},
		"a nil layer": {func(tape *autograd.Tape) *autograd.Variable {
			return nn.Sequential{nn.ReLU{}, nil}.Forward(tape, tape.Leaf(x))
		}, autograd.NewTape(b.Ctx, b.RT), autograd.ErrInvalid},
	} {
		_, err := c.tape.Backward(c.run(c.tape))
		assert.ErrorIs(t, err, c.want, name)
		assert.Regexp(t, "^(autograd|nn): ", err, name)
		assert.Error(t, c.tape.Close(), name)
	}
}

func TestATapeIsSpentAfterBackwardAndClose(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{1, 2})
	tape := autograd.NewTape(b.Ctx, b.RT)
	loss := tape.Sum(tape.Leaf(x))
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	_, err = tape.Backward(loss)
	require.ErrorIs(t, err, autograd.ErrSpent)
	require.ErrorIs(t, tape.Close(), autograd.ErrSpent)

	tape = autograd.NewTape(b.Ctx, b.RT)
	require.NoError(t, tape.Close())
	require.NoError(t, tape.Close())
	tape.Leaf(x)
	require.ErrorIs(t, tape.Err(), autograd.ErrSpent)
}

func TestIntermediatesAreFreedAfterTheirLastUse(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, make([]float32, 6), 2, 3)
	before := b.Live()
	tape := autograd.NewTape(b.Ctx, b.RT)
	u := tape.Leaf(x)
	shift := tape.AddScalar(u, 1) // Square needs it
	square := tape.Square(shift)  // no gradient needs it
	exp := tape.Exp(square)       // needed by its own gradient
	kept := tape.Neg(exp).Keep()
	loss := tape.Sum(kept)
	assert.Equal(t, before+5, b.Live())
	shift.Release()
	assert.Equal(t, before+5, b.Live(), "the backward pass needs it")
	square.Release()
	square.Release()
	assert.Equal(t, before+4, b.Live(), "nobody needs it")
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	assert.Equal(t, before+3, b.Live(), "the loss, what was kept, and the gradient of the leaf")
	assert.Equal(t, float32(-2.7182817), tapetest.Read[float32](b, kept.Value())[0])
	assert.True(t, exp.Value().Released())
	require.NoError(t, tape.Close())
	assert.Equal(t, before, b.Live())
}

func TestUseOfAReleasedVariable(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	x := tape.Exp(tape.Leaf(tapetest.Upload(b, []float32{1})))
	y := tape.MulScalar(tape.MulScalar(x, 2), 2)
	y.Release()
	tape.Exp(y)
	require.ErrorIs(t, tape.Err(), tensor.ErrReleased)
	require.Error(t, tape.Close())
}

func TestNoGradKeepsNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := b.MLP(tensor.Float32, 8, 16, 16, 4)
	x := tapetest.Upload(b, make([]float32, 16), 2, 8)
	before := b.Live()
	tape := autograd.NoGrad(b.Ctx, b.RT)
	y := model.Forward(tape, tape.Input(x))
	require.NoError(t, tape.Err())
	assert.Equal(t, before+1, b.Live(), "only the result")
	assert.Equal(t, tensor.Shape{2, 4}, y.Shape())
	require.NoError(t, tape.Close())
	assert.Equal(t, before, b.Live())
}

func TestTheFusedModelEqualsItsParts(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := b.MLP(tensor.Float64, 8, 16, 16, 4)
	data := make([]float64, 24)
	for i := range data {
		data[i] = float64(i%5) - 2
	}
	x, y := tapetest.Upload(b, data, 3, 8), tapetest.Upload(b, []int32{1, 0, 3})
	grads := func(forward func(tape *autograd.Tape, x *autograd.Variable) *autograd.Variable) (gs [][]float64) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		_, err := tape.Backward(tape.CrossEntropy(forward(tape, tape.Input(x)), y))
		require.NoError(t, err)
		for _, p := range model.Parameters() {
			gs = append(gs, tapetest.Read[float64](b, p.Grad()))
		}
		require.NoError(t, tape.Close())
		require.NoError(t, model.Parameters().ZeroGrad(b.Ctx))
		return gs
	}
	want := grads(func(tape *autograd.Tape, v *autograd.Variable) *autograd.Variable {
		for _, l := range model {
			if dense, ok := l.(*nn.Linear); ok {
				v = tape.AddBias(tape.MatMul(v, tape.Param(dense.Weight), tensor.TransB), tape.Param(dense.Bias))
			} else {
				v = l.Forward(tape, v)
			}
		}
		return v
	})
	assert.Equal(t, want, grads(model.Forward))
}

func TestGradientsAddUpUntilZeroGrad(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := b.MLP(tensor.Float64, 4, 2)
	ps := model.Parameters()
	x := tapetest.Upload(b, []float64{1, 2, 3, 4}, 1, 4)
	step := func(times int) {
		tape := autograd.NewTape(b.Ctx, b.RT)
		sum := tape.Sum(model.Forward(tape, tape.Input(x)))
		for range times - 1 { // the same parameters again, on one tape
			sum = tape.Add(sum, tape.Sum(model.Forward(tape, tape.Input(x))))
		}
		_, err := tape.Backward(sum)
		require.NoError(t, err)
		require.NoError(t, tape.Close())
	}
	step(1)
	once := tapetest.Read[float64](b, ps[0].Grad())
	assert.Equal(t, []float64{1, 2, 3, 4, 1, 2, 3, 4}, once)
	step(2)
	assert.Equal(t, []float64{3, 6, 9, 12, 3, 6, 9, 12}, tapetest.Read[float64](b, ps[0].Grad()))
	require.NoError(t, ps.ZeroGrad(b.Ctx))
	assert.Nil(t, ps[0].Grad())
	assert.Equal(t, int64(2), b.Live()-1, "weight, bias, and the batch")
	step(1)
	assert.Equal(t, once, tapetest.Read[float64](b, ps[0].Grad()))
}

// A gradient that can't be freed is an error, and the others are freed.
func TestZeroGradOfAFreedGradient(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := b.MLP(tensor.Float64, 4, 2)
	ps := model.Parameters()
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(model.Forward(tape, tape.Input(tapetest.Upload(b, []float64{1, 2, 3, 4}, 1, 4)))))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	require.NoError(t, ps[0].Grad().Block().Free())
	require.ErrorIs(t, ps.ZeroGrad(b.Ctx), memcache.ErrFreed)
	assert.Equal(t, int64(3), b.Live(), "weight, bias, and the batch")
}

// A bias is trained while the weights are constant.
func TestLinearWithConstantWeights(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x, w := tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 3, 2), tapetest.Upload(b, []float64{1, 0, 2, 1}, 2, 2)
	bias, err := autograd.NewParameter(tapetest.Upload(b, []float64{1, -1}))
	require.NoError(t, err)
	scale := tapetest.Upload(b, []float64{1, 2, 3, 4, 5, 6}, 3, 2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	y := tape.Linear(tape.Input(x), tape.Input(w), tape.Param(bias))
	_, err = tape.Backward(tape.Sum(tape.Mul(y, tape.Input(scale))))
	require.NoError(t, err)
	require.NoError(t, tape.Close())
	assert.Equal(t, []float64{1 + 3 + 5, 2 + 4 + 6}, tapetest.Read[float64](b, bias.Grad()))
	require.NoError(t, bias.ZeroGrad(b.Ctx))
}

func TestGradientsOfParametersShareNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p, err := autograd.NewParameter(tapetest.Upload(b, []float64{1, 2}))
	require.NoError(t, err)
	q, err := autograd.NewParameter(tapetest.Upload(b, []float64{3, 4}))
	require.NoError(t, err)
	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err = tape.Backward(tape.Sum(tape.Add(tape.Param(p), tape.Param(q))))
	require.NoError(t, err)
	live, _ := b.RT.Live()
	require.Equal(t, 5, live, "two values, two gradients, and the loss")
	require.NoError(t, tape.Close())
	require.NoError(t, b.RT.MulScalarInPlace(b.Ctx, p.Grad(), 5))
	assert.Equal(t, []float64{5, 5}, tapetest.Read[float64](b, p.Grad()))
	assert.Equal(t, []float64{1, 1}, tapetest.Read[float64](b, q.Grad()))
	require.NoError(t, p.ZeroGrad(b.Ctx))
	require.NoError(t, q.ZeroGrad(b.Ctx))
}

func TestNamesOfParameters(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := b.MLP(tensor.Float32, 4, 3, 2)
	var names []string
	for _, p := range model.Parameters() {
		names = append(names, p.Name)
	}
	assert.Equal(t, []string{"1.weight", "1.bias", "3.weight", "3.bias"}, names)
	assert.Equal(t, 4*3+3+3*2+2, model.Parameters().Elements())
	assert.Equal(t, int64(4*23), model.Parameters().Bytes())
	nested := nn.Sequential{model, nn.ReLU{}}
	assert.Equal(t, "0.3.bias", nested.Parameters()[3].Name)
}

func TestTensorsOfATapeBelongToNoLifetime(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	model := b.MLP(tensor.Float32, 4, 2)
	x := tapetest.Upload(b, []float32{1, 2, 3, 4}, 1, 4)
	opt, err := tapetest.WithErr(optim.NewSGD(model.Parameters(), optim.SGDConfig{Momentum: 0.9}))
	require.NoError(t, err)
	for range 2 {
		ctx, life := tensor.WithLifetime(b.Ctx)
		tape := autograd.NewTape(ctx, b.RT)
		tape.SetContext(ctx)
		sum := tape.Sum(model.Forward(tape, tape.Input(x)))
		_, err := tape.Backward(sum)
		require.NoError(t, err)
		require.NoError(t, opt.Step(ctx))
		require.NoError(t, life.Close(), "must take neither gradients nor state nor values of the tape")
		assert.False(t, sum.Value().Released())
		require.NoError(t, tape.Close())
		assert.False(t, model.Parameters()[0].Grad().Released())
	}
	require.NoError(t, opt.Close())
}

func TestIntegersHaveNoGradient(t *testing.T) {
	b := tapetest.Open(t, 1<<24)
	labels, err := tensor.Labels(b.Ctx, b.RT, []int{1, 0}, 2)
	require.NoError(t, err)
	defer labels.Release()
	_, err = autograd.NewParameter(labels)
	require.ErrorIs(t, err, tensor.ErrDtype)
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.Leaf(labels)
	require.ErrorIs(t, tape.Err(), tensor.ErrDtype)
	_ = tape.Close()
}

func TestNilLayer(t *testing.T) {
	b := tapetest.Open(t, 1<<24)
	x, err := tensor.FromSlice(b.Ctx, b.RT, []float32{1, 2}, 1, 2)
	require.NoError(t, err)
	defer x.Release()
	model := nn.Sequential{(*nn.Linear)(nil), nn.ReLU{}}
	require.Empty(t, model.Parameters())
	tape := autograd.NewTape(b.Ctx, b.RT)
	model.Forward(tape, tape.Input(x))
	require.ErrorIs(t, tape.Err(), autograd.ErrInvalid)
	_ = tape.Close()
}
