package nn_test

import (
	"context"
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/transfer"
)

// TestInitRefuses invalid arguments of Init and of its calls. The errors name the layer's numbers.
func TestInitRefuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for name, c := range map[string]struct {
		rt      *tensor.Runtime
		options []nn.InitOption
		make    func(in *nn.Initializer)
		want    error
		text    string
	}{
		"no runtime":             {nil, nil, func(in *nn.Initializer) { in.Linear(2, 2) }, autograd.ErrInvalid, "nn: Init: invalid argument: the runtime is nil"},
		"whole numbers":          {b.RT, []nn.InitOption{nn.Dtype(tensor.Int32)}, nil, tensor.ErrDtype, "nn: Init: "},
		"no dtype":               {b.RT, []nn.InitOption{nil, nn.Dtype(0)}, nil, tensor.ErrDtype, "nn: Init: "},
		"no inputs":              {b.RT, nil, func(in *nn.Initializer) { in.Linear(0, 2) }, autograd.ErrInvalid, "nn: Linear(0, 2): "},
		"no outputs":             {b.RT, nil, func(in *nn.Initializer) { in.Linear(2, -1) }, autograd.ErrInvalid, "nn: Linear(2, -1): "},
		"a size that overflows":  {b.RT, nil, func(in *nn.Initializer) { in.Linear(math.MaxInt, math.MaxInt) }, tensor.ErrShape, "nn: Linear("},
		"more than there is":     {b.RT, nil, func(in *nn.Initializer) { in.Linear(1<<14, 1<<13) }, memcache.ErrOutOfMemory, "nn: Linear(16384, 8192): "},
		"bounds in disorder":     {b.RT, nil, func(in *nn.Initializer) { in.Uniform(1, 0, 2) }, autograd.ErrInvalid, "nn: Uniform(1, 0) of (2): "},
		"bounds without numbers": {b.RT, nil, func(in *nn.Initializer) { in.Uniform(0, math.Inf(1), 2) }, autograd.ErrInvalid, "nn: Uniform("},
		"no deviation":           {b.RT, nil, func(in *nn.Initializer) { in.Normal(0, -1, 2) }, autograd.ErrInvalid, "nn: Normal(0, -1) of (2): "},
		"no mean":                {b.RT, nil, func(in *nn.Initializer) { in.Normal(math.NaN(), 1, 2) }, autograd.ErrInvalid, "nn: Normal("},
		"a negative dimension":   {b.RT, nil, func(in *nn.Initializer) { in.Ones(2, -1) }, tensor.ErrShape, "nn: Ones of (2, -1): "},
		"too few numbers":        {b.RT, nil, func(in *nn.Initializer) { in.Parameter([]float64{1}, 2) }, tensor.ErrShape, "nn: 1 numbers: "},
		"a label too great":      {b.RT, nil, func(in *nn.Initializer) { in.Labels([]int{0, 3}, 3) }, tensor.ErrLabel, "nn: 2 labels: "},
		"no parameters":          {b.RT, nil, func(in *nn.Initializer) { nn.Own(in, optim.NewAdam(nil, optim.AdamConfig{})) }, autograd.ErrInvalid, "optim: NewAdam: "},
		"a negative rate": {b.RT, nil, func(in *nn.Initializer) {
			nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "w", Parameter: in.Ones(1)}}, optim.SGDConfig{LR: new(-1.0)}))
		}, autograd.ErrInvalid, "optim: NewSGD: invalid argument: LR is -1"},
	} {
		in := nn.Init(b.Ctx, c.rt, c.options...)
		if c.make != nil {
			c.make(in)
		}
		require.ErrorIs(t, in.Err(), c.want, name)
		assert.ErrorContains(t, in.Err(), c.text, name)
		require.Equal(t, in.Err(), in.Close(), name)
		assert.Zero(t, b.Live(), name)
	}
	var none context.Context
	in := nn.Init(none, b.RT)
	require.ErrorContains(t, in.Err(), "nn: Init: invalid argument: the context is nil")
	require.NotNil(t, in.Context())
}

// TestInitialisersByName, from a seed, in both dtypes.
func TestInitialisersByName(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	for _, dtype := range []tensor.Dtype{tensor.Float32, tensor.Float64} {
		values := func(in *nn.Initializer, p *autograd.Parameter) []float64 {
			require.NoError(t, in.Err())
			require.Equal(t, dtype, p.Value().Dtype())
			wide, err := b.RT.Convert(b.Ctx, p.Value(), tensor.Float64)
			require.NoError(t, err)
			s := tapetest.Read[float64](b, wide)
			require.NoError(t, errors.Join(wide.Release(), p.Release()))
			return s
		}
		in, twin, other := nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(dtype)), nn.Init(b.Ctx, b.RT, nn.Seed(1), nn.Dtype(dtype)), nn.Init(b.Ctx, b.RT, nn.Seed(2), nn.Dtype(dtype))
		assert.Equal(t, dtype, in.Dtype())
		assert.Same(t, b.RT, in.Runtime())
		assert.Equal(t, b.Ctx, in.Context())
		l := in.Linear(100, 50)
		assert.Equal(t, tensor.Shape{50, 100}, l.Weight.Value().Shape())
		assert.Equal(t, tensor.Shape{50}, l.Bias.Value().Shape())
		w := values(in, l.Weight)
		assert.Equal(t, w, values(twin, twin.Linear(100, 50).Weight))
		assert.NotEqual(t, w, values(other, other.Linear(100, 50).Weight))
		moments(t, w, -0.1, 0.1, 0, 0.1/math.Sqrt(3))
		for _, v := range values(in, l.Bias) {
			assert.LessOrEqual(t, math.Abs(v), 0.1)
		}
		moments(t, values(in, in.Uniform(2, 4, 100, 50)), 2, 4, 3, 1/math.Sqrt(3))
		moments(t, values(in, in.Normal(1, 0.5, 100, 50)), math.NaN(), math.NaN(), 1, 0.5)
		assert.Equal(t, []float64{0, 0}, values(in, in.Zeros(2)))
		assert.Equal(t, []float64{1}, values(in, in.Ones()))
		assert.Equal(t, []float64{3, 3, 3}, values(in, in.Uniform(3, 3, 3)))
		assert.Equal(t, []float64{1, 2, 0.5}, values(in, in.Parameter([]float64{1, 2, 0.5})))
		require.NoError(t, errors.Join(in.Close(), twin.Close(), other.Close()))
	}
	a, c := nn.Init(b.Ctx, b.RT).Rand().Uint64(), nn.Init(b.Ctx, b.RT).Rand().Uint64()
	assert.NotEqual(t, a, c, "without a seed")
}

// moments checks the bounds, the mean and the standard deviation of many numbers.
func moments(t *testing.T, values []float64, low, high, mean, std float64) {
	t.Helper()
	lowest, highest, sum, squares := values[0], values[0], 0.0, 0.0
	for _, v := range values {
		lowest, highest, sum, squares = min(lowest, v), max(highest, v), sum+v, squares+v*v
	}
	n := float64(len(values))
	if !math.IsNaN(low) {
		assert.InDelta(t, low, lowest, 1e-2*(high-low))
		assert.InDelta(t, high, highest, 1e-2*(high-low))
		assert.GreaterOrEqual(t, lowest, low)
		assert.LessOrEqual(t, highest, high)
	}
	assert.InDelta(t, mean, sum/n, 0.05*std)
	assert.InDelta(t, std, math.Sqrt(squares/n-sum/n*sum/n), 0.05*std)
}

// TestAfterAnErrorNothingIsMade: the results can be used, and do nothing.
func TestAfterAnErrorNothingIsMade(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	first := in.Linear(2, 3)
	in.Linear(7, 0)
	failed := in.Err()
	require.ErrorContains(t, failed, "nn: Linear(7, 0): ")
	assert.True(t, first.Weight.Value().Released(), "what was made so far is released")
	assert.Zero(t, b.Live())

	late := in.Linear(3, 4)
	model := nn.Sequential{first, late, nn.ReLU{}}
	x, y := in.Tensor([]float64{1, 2}), in.Labels([]int{1}, 2)
	for _, missing := range []*tensor.Tensor{x, y} {
		assert.True(t, missing.Released())
		_, err := b.RT.Neg(b.Ctx, missing)
		require.ErrorIs(t, err, failed)
		require.ErrorIs(t, err, tensor.ErrReleased)
	}
	for _, p := range append(late.Parameters(), autograd.Named{Name: "u", Parameter: in.Uniform(0, 1, 3)}, autograd.Named{Name: "n", Parameter: in.Normal(0, 1, 3)}, autograd.Named{Name: "p", Parameter: in.Parameter([]float64{1})}) {
		require.NotNil(t, p.Parameter)
		assert.Zero(t, p.Value().Elements())
		assert.Nil(t, p.Grad())
		require.NoError(t, errors.Join(p.ZeroGrad(b.Ctx), p.Release()))
	}
	assert.Equal(t, 2*3+3, model.Parameters().Elements(), "shapes stay, memory does not")
	for _, opt := range []optim.Optimizer{nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{})), nn.Own(in, optim.NewAdamW(model.Parameters(), optim.AdamConfig{})), nn.Own(in, optim.NewSGD(model.Parameters(), optim.SGDConfig{}))} {
		require.ErrorIs(t, opt.Prepare(b.Ctx), failed)
		require.ErrorIs(t, opt.Step(b.Ctx), failed)
		require.NoError(t, errors.Join(opt.ZeroGrad(b.Ctx), opt.SetLR(1), opt.Close()))
		assert.InDelta(t, 1, opt.LR(), 0)
	}
	for range in.Steps(3) {
		t.Error("a step")
	}
	assert.Zero(t, b.Live())
	require.Equal(t, failed, in.Err(), "the first one")
	in.Fail(autograd.ErrStale)
	require.Equal(t, failed, in.Err())

	tape := autograd.NewTape(b.Ctx, b.RT)
	late.Forward(tape, tape.Input(tapetest.Upload(b, []float64{1, 2, 3}, 1, 3)))
	require.ErrorIs(t, tape.Err(), failed)
	require.ErrorContains(t, tape.Close(), "autograd: Param: invalid argument: the parameter was not made: nn: Linear(7, 0): ")
	_, err := tapetest.WithErr(optim.NewAdam(late.Parameters(), optim.AdamConfig{}))
	require.ErrorIs(t, err, failed)
	require.ErrorContains(t, err, `parameter "weight": `)
	require.Equal(t, failed, in.Close())
}

// TestAcceptedTensorsStay after a later error; Close releases them.
func TestAcceptedTensorsStay(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT)
	model := nn.Sequential{in.Linear(2, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
	require.NoError(t, adam.Prepare(b.Ctx))
	require.NoError(t, in.Err())
	accepted := b.Live()
	later := in.Linear(2, 2)
	in.Fail(nil)
	require.NoError(t, in.Err(), "nil is no error")
	another := in.Ones(3)
	in.Fail(autograd.ErrNoGrad)
	require.Equal(t, autograd.ErrNoGrad, in.Err())
	assert.False(t, model.Parameters()[0].Value().Released())
	assert.False(t, later.Weight.Value().Released())
	assert.True(t, another.Value().Released())
	assert.Equal(t, accepted+2, b.Live())

	tape := autograd.NewTape(b.Ctx, b.RT)
	_, err := tape.Backward(tape.Sum(tape.Square(tape.Param(model.Parameters()[0].Parameter))))
	require.NoError(t, errors.Join(err, tape.Close()))
	require.NoError(t, later.Bias.Release(), "by the program")
	require.Equal(t, autograd.ErrNoGrad, in.Close())
	assert.Zero(t, b.Live(), "values, gradients, the optimiser's state")
	require.Equal(t, autograd.ErrNoGrad, in.Close())

	for _, accepts := range []bool{false, true} {
		in = nn.Init(b.Ctx, b.RT)
		in.Linear(2, 2)
		if accepts {
			require.NoError(t, in.Err())
		}
		require.NoError(t, in.Close())
		require.NotNil(t, in.Ones(1))
		require.ErrorContains(t, in.Err(), "nn: Ones of (1): invalid argument: the initialiser was closed")
		require.NoError(t, in.Close())
		assert.Zero(t, b.Live())
	}
}

// TestInitWithoutMemory leaks nothing, whichever allocation fails.
func TestInitWithoutMemory(t *testing.T) {
	b := tapetest.Open(t, 2<<20)
	for free := range 5 {
		filler := b.Fill(free)
		before := b.Live()
		in := nn.Init(b.Ctx, b.RT)
		in.Tensor([]float64{1})
		in.Parameter([]float64{1})
		in.Linear(2, 2)
		in.Labels([]int{1}, 2)
		require.ErrorIs(t, in.Err(), memcache.ErrOutOfMemory, "%d blocks", free)
		assert.Equal(t, before, b.Live())
		for _, block := range filler {
			require.NoError(t, block.Free())
		}
	}
}

// TestInitWithoutPinnedMemory: the weights have memory, but can't be copied there.
func TestInitWithoutPinnedMemory(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	require.NoError(t, b.RT.Pool().Close())
	in := nn.Init(b.Ctx, b.RT)
	in.Linear(2, 2)
	require.ErrorIs(t, in.Err(), transfer.ErrClosed)
	require.ErrorContains(t, in.Err(), "nn: Linear(2, 2): ")
	assert.Zero(t, b.Live())
}

// TestInitBelongsToNoLifetime, also inside of one.
func TestInitBelongsToNoLifetime(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ctx, life := tensor.WithLifetime(b.Ctx)
	in := nn.Init(ctx, b.RT)
	l, x, p := in.Linear(2, 2), in.Tensor([]float64{1}), in.Parameter([]float64{1})
	require.NoError(t, in.Err())
	require.NoError(t, life.Close())
	assert.False(t, l.Weight.Value().Released())
	assert.False(t, l.Bias.Value().Released())
	assert.False(t, x.Released())
	assert.False(t, p.Value().Released())
	require.NoError(t, in.Close())
}

// scaleShift is a layer as programs write them: it is made of parameters, has errors of its own,
// and frees its intermediate values.
type scaleShift struct{ scale, shift *autograd.Parameter }

func newScaleShift(in *nn.Initializer, n int) scaleShift {
	if n == 13 {
		in.Fail(errors.New("layers: 13 brings bad luck"))
	}
	return scaleShift{in.Ones(n), in.Zeros(n)}
}

func (l scaleShift) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable { return t.Add(t.Mul(x, t.Param(l.scale)), t.Param(l.shift)) })
}

func (l scaleShift) Parameters() autograd.Parameters {
	return autograd.Parameters{{Name: "scale", Parameter: l.scale}, {Name: "shift", Parameter: l.shift}}
}

func TestLayersOfTheProgram(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	model := nn.Sequential{newScaleShift(in, 2), newScaleShift(in, 2)}
	x := in.Tensor([]float64{1, 2})
	require.NoError(t, in.Err())
	for _, record := range []bool{true, false} {
		before := b.Live()
		tape := tapetest.NewTape(b.Ctx, b.RT, record)
		h := tape.MulScalar(tape.Input(x), 2)
		y := model.Forward(tape, h)
		require.NoError(t, tape.Err())
		assert.False(t, h.Value().Released(), "it leaves its argument to the caller")
		if !record {
			assert.Equal(t, before+2, b.Live(), "the argument and the result")
		}
		assert.Equal(t, []float64{2, 4}, tapetest.Read[float64](b, y.Value()))
		require.NoError(t, tape.Close())
	}
	newScaleShift(in, 13)
	require.EqualError(t, in.Close(), "layers: 13 brings bad luck")
	assert.Zero(t, b.Live())
}

// TestSteps: steps train, their tapes are always closed, and the loop ends with the first error.
func TestSteps(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ctx, cancel := context.WithCancel(b.Ctx)
	defer cancel()
	in := nn.Init(ctx, b.RT, nn.Seed(1), nn.Dtype(tensor.Float64))
	x, y := in.Tensor([]float64{0, 0, 0, 1, 1, 0, 1, 1}, 4, 2), in.Labels([]int{0, 1, 1, 0}, 2)
	model := nn.Sequential{in.Linear(2, 16), nn.ReLU{}, in.Linear(16, 2)}
	adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{LR: new(0.05)}))
	var losses []float64
	for i, tape := range in.Steps(60) {
		require.Len(t, losses, i)
		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y)
		optim.Minimize(tape, loss, adam)
		losses = append(losses, loss.Item())
		assert.Nil(t, model.Parameters()[0].Grad(), "zeroed")
	}
	require.NoError(t, in.Err())
	require.Len(t, losses, 60)
	assert.Less(t, losses[59], 0.1*losses[0])
	live := b.Live()

	for i, tape := range in.Steps(3) {
		if i == 1 {
			break
		}
		tape.Square(tape.Input(x))
	}
	require.NoError(t, in.Err())
	assert.PanicsWithValue(t, "at the disco", func() {
		for _, tape := range in.Steps(3) {
			tape.Square(tape.Input(x))
			panic("at the disco")
		}
	})
	assert.Equal(t, live, b.Live(), "closed after a break and a panic, too")
	for range in.Steps(0) {
		t.Error("a step of none")
	}

	n := 0
	for range in.Steps(5) {
		if n++; n == 2 {
			cancel()
		}
	}
	assert.Equal(t, 2, n)
	require.ErrorIs(t, in.Err(), context.Canceled)
	require.ErrorContains(t, in.Err(), "nn: Steps: after 2 of 5: ")
	assert.Equal(t, live, b.Live(), "what was made stays, for the program to save it")
	require.ErrorIs(t, in.Close(), context.Canceled)
	assert.Equal(t, int64(1), b.Live(), "the runtime's word for faults")

	ctx, cancel = context.WithCancel(b.Ctx)
	in = nn.Init(ctx, b.RT)
	weights := in.Ones(2)
	cancel()
	for range in.Steps(1) {
		t.Error("a step of a context that has ended")
	}
	require.ErrorIs(t, in.Err(), context.Canceled)
	assert.False(t, weights.Value().Released(), "though nobody had asked for Err before")
	require.ErrorIs(t, in.Close(), context.Canceled)

	in = nn.Init(b.Ctx, b.RT)
	n = 0
	for _, tape := range in.Steps(5) {
		if n++; n == 2 {
			tape.Exp(nil)
		}
	}
	assert.Equal(t, 2, n)
	require.EqualError(t, in.Err(), "autograd: Exp: invalid argument: operand 1 is nil")
}

// TestMinimize calls Backward, Step and ZeroGrad, and returns their errors.
func TestMinimize(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	p := in.Parameter([]float64{1, 2})
	sgd := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(0.5)}))
	require.NoError(t, in.Err())
	tape := autograd.NewTape(b.Ctx, b.RT)
	loss := tape.Sum(tape.Square(tape.Param(p)))
	optim.Minimize(tape, loss, sgd)
	require.NoError(t, tape.Err())
	assert.InDelta(t, 5, loss.Item(), 0)
	require.NoError(t, tape.Close())
	assert.Equal(t, []float64{0, 0}, tapetest.Read[float64](b, p.Value()))
	assert.Nil(t, p.Grad())

	tape = autograd.NewTape(b.Ctx, b.RT)
	optim.Minimize(tape, tape.Sum(tape.Param(p)), nil)
	require.EqualError(t, tape.Close(), "optim: Minimize: invalid argument: the optimiser is nil")
	tape = autograd.NoGrad(b.Ctx, b.RT)
	optim.Minimize(tape, tape.Sum(tape.Param(p)), sgd)
	require.ErrorIs(t, tape.Close(), autograd.ErrNoGrad)
	assert.Equal(t, []float64{0, 0}, tapetest.Read[float64](b, p.Value()))

	tape = autograd.NewTape(b.Ctx, b.RT)
	loss = tape.Sum(tape.Square(tape.Param(p)))
	optim.Minimize(tape, loss, broken{sgd})
	require.ErrorIs(t, tape.Close(), errBroken)
	assert.Nil(t, p.Grad(), "zeroed all the same")
	require.NoError(t, in.Close())
}

var errBroken = errors.New("out of order")

// broken is an optimiser whose steps fail.
type broken struct{ optim.Optimizer }

func (broken) Step(context.Context) error { return errBroken }

// TestItem reads numbers of every dtype of a tape, and NaN if there is none.
func TestItem(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	tape := autograd.NewTape(b.Ctx, b.RT)
	assert.InDelta(t, 1.5, autograd.Upload(tape, []float32{1.5}).Item(), 0)
	assert.InDelta(t, 2.5, autograd.Upload(tape, []float64{2.5}, 1, 1).Item(), 0)
	assert.InDelta(t, 3, autograd.Upload(tape, []int32{3}).Item(), 0)
	require.NoError(t, tape.Err())
	var none *autograd.Variable
	assert.True(t, math.IsNaN(none.Item()))
	assert.True(t, math.IsNaN(tape.Fail(nil).Item()))
	assert.True(t, math.IsNaN(autograd.Upload(tape, []float64{1, 2}).Item()))
	require.ErrorIs(t, tape.Err(), tensor.ErrShape)
	require.ErrorContains(t, tape.Err(), "autograd: Item: ")
	require.Error(t, tape.Close())

	tape = autograd.NewTape(b.Ctx, b.RT)
	assert.True(t, math.IsNaN(autograd.Upload(tape, []uint8{1}).Item()))
	require.ErrorIs(t, tape.Close(), tensor.ErrDtype)
	tape = autograd.NewTape(b.Ctx, b.RT)
	assert.Nil(t, autograd.Upload(tape, []float64{1}, 2).Value())
	require.ErrorContains(t, tape.Close(), "autograd: Upload: ")
	autograd.Upload(tape, []float64{1})
	assert.Zero(t, b.Live())
}

// TestUploadsAreTheTapes: the tape frees them after their last use, and in Close.
func TestUploadsAreTheTapes(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.Parameter(2)
	tape := autograd.NewTape(b.Ctx, b.RT)
	x, y := autograd.Upload(tape, []float64{1, 2, 3, 4}, 2, 2), autograd.Upload(tape, []int32{0, 1})
	loss := tape.CrossEntropy(tape.AddBias(x, tape.Param(p)), y.Value())
	_, err := tape.Backward(loss)
	require.NoError(t, err)
	assert.True(t, x.Value().Released())
	assert.True(t, y.Value().Released())
	require.NoError(t, errors.Join(tape.Close(), p.ZeroGrad(b.Ctx)))

	tape = autograd.NoGrad(b.Ctx, b.RT)
	x = autograd.Upload(tape, []float64{1, 2, 3, 4}, 2, 2)
	tape.Exp(x)
	tape.Exp(x)
	require.NoError(t, tape.Err())
	assert.False(t, x.Value().Released(), "an input can be read again")
	require.NoError(t, tape.Close())
	assert.True(t, x.Value().Released())
}
