package autograd_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// halfTape is a tape that computes in bfloat16.
func halfTape(b *tapetest.Bench) *autograd.Tape {
	tape := autograd.NewTape(b.Ctx, b.RT)
	tape.SetComputeDtype(tensor.BFloat16)
	return tape
}

// master makes a float32 parameter that the test releases.
func master(b *tapetest.Bench, data []float32, shape ...int) *autograd.Parameter {
	b.T.Helper()
	x, err := tensor.FromSlice(b.Ctx, b.RT, data, shape...)
	require.NoError(b.T, err)
	p, err := autograd.NewParameter(x)
	require.NoError(b.T, err)
	b.T.Cleanup(func() { assert.NoError(b.T, p.Release()) })
	return p
}

// floats are the elements of a tensor of bfloat16 or float32.
func floats(b *tapetest.Bench, x *tensor.Tensor) []float32 {
	b.T.Helper()
	if x.Dtype() != tensor.BFloat16 {
		return tapetest.Read[float32](b, x)
	}
	var all []float32
	for _, v := range tapetest.Read[tensor.BF16](b, x) {
		all = append(all, v.Float32())
	}
	return all
}

// TestBFloat16NormOfAConstant: the rounded weights of a norm whose argument needs no gradient are
// freed before the backward pass, which does not read them.
func TestBFloat16NormOfAConstant(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Seed(2))
	x := in.Tensor([]float64{1, 2, 3, 5, 1, 4, 1, 3}, 2, 4, 1)
	for _, l := range []nn.Layer{in.GroupNorm(2, 4), in.BatchNorm(4)} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.SetComputeDtype(tensor.BFloat16)
		_, err := tape.Backward(tape.Sum(tape.Square(l.Forward(tape, tape.Input(x)))))
		require.NoError(t, err)
		for _, p := range l.Parameters() {
			require.NotNil(t, p.Grad(), p.Name)
		}
		require.NoError(t, tape.Close())
	}
	require.NoError(t, in.Close())
}

// TestBFloat16RoundsOperands: float32 tensors are rounded once, and others never.
func TestBFloat16RoundsOperands(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	third := tensor.ToBF16(1.0 / 3)
	p, x := master(b, []float32{1.0 / 3}), tapetest.Upload(b, []float32{1.0 / 3})
	ints, double := tapetest.Upload(b, []int32{1 << 20}), tapetest.Upload(b, []float64{1.0 / 3})
	tape := halfTape(b)
	defer func() { require.NoError(t, tape.Close()) }()
	assert.Equal(t, tensor.BFloat16, tape.ComputeDtype())
	for name, v := range map[string]*autograd.Variable{"Param": tape.Param(p), "Input": tape.Input(x), "Leaf": tape.Leaf(x), "Upload": autograd.Upload(tape, []float32{1.0 / 3})} {
		require.NoError(t, tape.Err(), name)
		assert.Equal(t, []tensor.BF16{third}, tapetest.Read[tensor.BF16](b, v.Value()), name)
	}
	live := b.Live()
	assert.Same(t, tape.Param(p), tape.Param(p))
	tape.Param(p).Release() // as of any parameter, it does nothing
	assert.Equal(t, []tensor.BF16{third}, tapetest.Read[tensor.BF16](b, tape.Param(p).Value()))
	assert.Equal(t, live, b.Live(), "one copy of a parameter")
	assert.Equal(t, []float32{1.0 / 3}, tapetest.Read[float32](b, p.Value()))
	assert.Equal(t, tensor.Int32, tape.Input(ints).Value().Dtype())
	assert.Equal(t, tensor.Float64, tape.Input(double).Value().Dtype())
	assert.InDelta(t, float64(third.Float32()), tape.Input(x).Item(), 0)
	tape.SetComputeDtype(tensor.Float32)
	assert.Equal(t, []float32{1.0 / 3}, tapetest.Read[float32](b, tape.Input(x).Value()))
	wide := tape.Cast(tape.Cast(tape.Leaf(x), tensor.BFloat16), tensor.Float32)
	assert.Equal(t, []float32{third.Float32()}, tapetest.Read[float32](b, wide.Value()))
	assert.Same(t, wide, tape.Cast(wide, tensor.Float32))
}

func TestBFloat16Refuses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := master(b, []float32{1})
	for _, dtype := range []tensor.Dtype{tensor.Float64, tensor.Int32, 0} {
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.SetComputeDtype(dtype)
		require.ErrorIs(t, tape.Err(), tensor.ErrDtype)
		require.ErrorContains(t, tape.Close(), "SetComputeDtype")
	}
	tape := halfTape(b)
	tape.Param(p)
	tape.SetComputeDtype(tensor.Float32)
	tape.Param(p)
	require.ErrorIs(t, tape.Err(), tensor.ErrDtype)
	require.ErrorContains(t, tape.Close(), "is on the tape in bfloat16, and the tape computes in float32 now")

	half := tapetest.Upload(b, []tensor.BF16{1})
	_, err := autograd.NewParameter(half)
	require.ErrorIs(t, err, tensor.ErrDtype)
	require.ErrorContains(t, err, "SetComputeDtype")
	require.ErrorIs(t, nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.BFloat16)).Err(), tensor.ErrDtype)
	require.ErrorIs(t, nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64), nn.ComputeDtype(tensor.BFloat16)).Err(), tensor.ErrDtype)
	require.ErrorIs(t, nn.Init(b.Ctx, b.RT, nn.ComputeDtype(tensor.Int64)).Err(), tensor.ErrDtype)
	require.NoError(t, nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64), nn.ComputeDtype(tensor.Float32)).Err())
}

// TestBFloat16MastersKeepSmallUpdates: each update is a 32nd of bfloat16's resolution at 1, and all
// of them count. The working copy follows.
func TestBFloat16MastersKeepSmallUpdates(t *testing.T) {
	const lr, steps = 0x1p-13, 64
	b := tapetest.Open(t, 64<<20)
	for name, make := range map[string]func(autograd.Parameters) (optim.Optimizer, error){
		"SGD": func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(lr)}))
		},
		"Adam": func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewAdam(ps, optim.AdamConfig{LR: new(lr), Eps: new(0.0)}))
		},
		"RMSprop": func(ps autograd.Parameters) (optim.Optimizer, error) {
			return tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{LR: new(lr), Alpha: new(0.0), Eps: new(0.0)}))
		},
	} {
		p := master(b, []float32{1, 1, 1, 1}, 2, 2)
		opt, err := make(autograd.Parameters{{Name: "w", Parameter: p}})
		require.NoError(t, err)
		for range steps {
			tape := halfTape(b)
			optim.Minimize(tape, tape.Sum(tape.Mul(tape.Param(p), autograd.Upload(tape, []float32{1, 1, 1, 1}, 2, 2))), opt)
			require.NoError(t, tape.Close(), name)
		}
		for _, v := range tapetest.Read[float32](b, p.Value()) {
			assert.InDelta(t, 1-steps*lr, v, 1e-5, name)
		}
		tape := halfTape(b)
		assert.Equal(t, tensor.ToBF16(1-steps*lr), tapetest.Read[tensor.BF16](b, tape.Param(p).Value())[0], name)
		require.NoError(t, errors.Join(tape.Close(), opt.Close()))
	}
}

// TestBFloat16SumsOfGradients: a gradient of one operation is bfloat16. One that is added up, over
// the uses of a parameter or over tapes, loses no small terms.
func TestBFloat16SumsOfGradients(t *testing.T) {
	const small, times = 0x1p-9, 12
	b := tapetest.Open(t, 64<<20)
	once, often := master(b, []float32{1, 2}), master(b, []float32{1, 2})
	add := func(p *autograd.Parameter, uses int, c float64) {
		tape := halfTape(b)
		var sum *autograd.Variable
		for i := range uses {
			term := tape.Sum(tape.MulScalar(tape.Param(p), c))
			if i == 0 {
				sum = term
			} else {
				sum = tape.Add(sum, term)
			}
		}
		_, err := tape.Backward(sum)
		require.NoError(t, errors.Join(err, tape.Close()))
	}
	add(once, 1, 1)
	assert.Equal(t, []tensor.BF16{tensor.ToBF16(1), tensor.ToBF16(1)}, tapetest.Read[tensor.BF16](b, once.Grad()))
	for range times {
		add(once, 1, small)
	}
	assert.Equal(t, []float32{1 + times*small, 1 + times*small}, tapetest.Read[float32](b, once.Grad()))
	add(often, times, small)
	add(often, 1, 1)
	assert.Equal(t, []float32{1 + times*small, 1 + times*small}, tapetest.Read[float32](b, often.Grad()))

	tape := autograd.NewTape(b.Ctx, b.RT) // one that computes in float32 goes on with it
	_, err := tape.Backward(tape.Sum(tape.MulScalar(tape.Param(once), 0x1p-20)))
	require.NoError(t, errors.Join(err, tape.Close()))
	assert.Equal(t, float32(1+times*small+0x1p-20), tapetest.Read[float32](b, once.Grad())[0])

	total, err := optim.ClipGradNormOf(b.Ctx, autograd.Parameters{{Name: "once", Parameter: once}, {Name: "often", Parameter: often}}, 1)
	require.NoError(t, err)
	assert.InEpsilon(t, 2*(1+times*small), float64(tapetest.Read[float32](b, total)[0]), 1e-5)
	assert.InEpsilon(t, 0.5, float64(tapetest.Read[float32](b, once.Grad())[0]), 1e-5)
	require.NoError(t, total.Release())
}

// TestBFloat16GradientsAreOfTheCopy: a step of the optimiser between a forward pass and its
// backward pass does not affect the tape, because it has a copy.
func TestBFloat16GradientsAreOfTheCopy(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := master(b, []float32{3})
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "w", Parameter: p}}, optim.SGDConfig{LR: new(1.0)}))
	require.NoError(t, err)
	early, late := halfTape(b), halfTape(b)
	loss := early.Sum(early.Square(early.Param(p)))
	optim.Minimize(late, late.Sum(late.Param(p)), opt)
	require.NoError(t, late.Close())
	require.Equal(t, []float32{2}, tapetest.Read[float32](b, p.Value()))
	_, err = early.Backward(loss)
	require.NoError(t, err)
	assert.Equal(t, []float32{6}, floats(b, p.Grad()))
	require.NoError(t, errors.Join(early.Close(), opt.Close()))
}

// TestBFloat16Memory counts the bytes of a step of a dense model: activations and copies of the
// parameters are half of float32's, the copies end in the backward pass, and gradients are half.
func TestBFloat16Memory(t *testing.T) {
	const rows, width, layers, classes = 256, 512, 3, 512
	b := tapetest.Open(t, 256<<20)
	b.NeedsHost("a GPU keeps workspaces of its own")
	in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
	var model nn.Sequential
	for range layers {
		model = append(model, in.Linear(width, width, nn.NoBias()), nn.ReLU{})
	}
	model = append(model, in.Linear(width, classes, nn.NoBias()))
	require.NoError(t, in.Err())
	params := model.Parameters()
	x, labels := tapetest.Upload(b, make([]float32, rows*width), rows, width), tapetest.Upload(b, make([]int32, rows))
	weights := int64(layers*width*width+width*classes) * 4
	require.Equal(t, weights, params.Bytes())
	for _, c := range []struct {
		dtype           tensor.Dtype
		forward, copies int64
	}{
		// each layer's result, and both before and after a ReLU, because there is no bias to fuse
		// it with
		{tensor.Float32, 4 * rows * (layers*width + classes), 0},
		{tensor.BFloat16, 2 * rows * (width + layers*width + classes), weights / 2}, // with the input, which is a copy
	} {
		before := b.Bytes()
		tape := autograd.NewTape(b.Ctx, b.RT)
		tape.SetComputeDtype(c.dtype)
		loss := tape.CrossEntropy(model.Forward(tape, tape.Input(x)), labels)
		require.NoError(t, tape.Err())
		require.Equal(t, tensor.Float32, loss.Value().Dtype())
		const scalar = 512
		faults := int64(512) // of labels, from the first loss on
		if c.dtype == tensor.BFloat16 {
			faults = 0
		}
		assert.Equal(t, c.forward+c.copies+scalar+faults, b.Bytes()-before, "%v: what the backward pass needs", c.dtype)
		_, err := tape.Backward(loss)
		require.NoError(t, err)
		assert.Equal(t, weights/4*int64(c.dtype.Size())+scalar+faults, b.Bytes()-before, "%v: gradients and the loss", c.dtype)
		require.NoError(t, errors.Join(tape.Close(), params.ZeroGrad(b.Ctx)))
		require.Equal(t, before+faults, b.Bytes())
	}
	require.NoError(t, in.Close())
}

// TestBFloat16Losses are float32, of operands of both dtypes.
func TestBFloat16Losses(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	random := rand.New(rand.NewPCG(1, 16))
	data, target := make([]float32, 12), make([]float32, 12)
	for i := range data {
		data[i], target[i] = tensor.ToBF16(float32(random.NormFloat64())).Float32(), random.Float32()
	}
	weight := tapetest.Upload(b, []float32{0.3, 0.4, 0.7, 0.9})
	y, labels := tapetest.Upload(b, target, 3, 4), tapetest.Upload(b, []int32{1, 3, 0})
	for name, f := range map[string]func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable{
		"MSELoss":       func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.MSELoss(x, y) },
		"L1Loss":        func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.L1Loss(x, y) },
		"HuberLoss":     func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.HuberLoss(x, y, 0.5) },
		"BCEWithLogits": func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.BCEWithLogits(x, y) },
		"weighted BCE": func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable {
			return t.BCEWithLogits(x, y, tensor.Weight(weight))
		},
		"KLDivLoss": func(t *autograd.Tape, x, y *autograd.Variable) *autograd.Variable { return t.KLDivLoss(x, y) },
		"NLLLoss": func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable {
			return t.NLLLoss(x, labels, tensor.Weight(weight))
		},
		"CrossEntropy": func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable { return t.CrossEntropy(x, labels) },
		"weighted": func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable {
			return t.CrossEntropy(x, labels, tensor.Weight(weight))
		},
		"of probabilities": func(t *autograd.Tape, x, _ *autograd.Variable) *autograd.Variable {
			return t.CrossEntropy(x, y, tensor.Weight(weight))
		},
	} {
		run := func(dtype tensor.Dtype) (float64, []float32) {
			tape := autograd.NewTape(b.Ctx, b.RT)
			target := tape.Input(y)
			tape.SetComputeDtype(dtype)
			x := tape.Leaf(tapetest.Upload(b, data, 3, 4))
			loss := f(tape, x, target)
			require.NoError(t, tape.Err(), name)
			require.Equal(t, tensor.Float32, loss.Value().Dtype(), name)
			_, err := tape.Backward(loss)
			require.NoError(t, err, name)
			require.Equal(t, dtype, x.Grad().Dtype(), name)
			value, grad := loss.Item(), floats(b, x.Grad())
			require.NoError(t, tape.Close())
			return value, grad
		}
		want, wantGrad := run(tensor.Float32)
		got, grad := run(tensor.BFloat16)
		assert.InDelta(t, want, got, 1e-6, "%s: nothing is rounded on the way", name)
		for i, v := range wantGrad {
			assert.InDelta(t, v, grad[i], 0x1p-8*max(float64(v), -float64(v))+1e-7, name)
		}
	}
}

// Gradients of 16 bits, of several uses and tapes, are added up in float32, and only the sum is
// left. A backward pass that fails afterwards leaves the earlier narrow gradient.
func TestWideSumsLeaveNothing(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := master(b, []float32{1, 2})
	before := b.Live()
	run := func(uses int, fails error) error {
		tape := halfTape(b)
		y := tape.Func("First", []*autograd.Variable{tape.Param(p)}, func(c *autograd.Call) (*tensor.Tensor, error) {
			return b.RT.MulScalar(c.Context(), c.Input(0), 2)
		}, func(c *autograd.Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
			if fails != nil {
				return nil, fails
			}
			return c.Grads(b.RT.MulScalar(c.Context(), g, 2))
		})
		for range uses - 1 {
			y = tape.Add(y, tape.MulScalar(tape.Param(p), 2))
		}
		if _, err := tape.Backward(tape.Sum(y)); err == nil {
			require.Equal(t, before+2, b.Live(), "the loss and the gradient")
		}
		return tape.Close()
	}
	for _, tapes := range [][]int{{1, 1, 3}, {3, 2}, {2, 1}} {
		want := float32(0)
		for _, uses := range tapes {
			require.NoError(t, run(uses, nil))
			want += 2 * float32(uses)
			require.Equal(t, []float32{want, want}, floats(b, p.Grad()), "%v", tapes)
			require.Equal(t, before+1, b.Live(), "%v", tapes)
		}
		require.NoError(t, p.ZeroGrad(b.Ctx))
	}
	require.NoError(t, run(1, nil))
	require.Equal(t, tensor.BFloat16, p.Grad().Dtype())
	wrong := errors.New("on purpose")
	require.ErrorIs(t, run(2, wrong), wrong)
	require.Equal(t, []float32{2, 2}, floats(b, p.Grad()))
	require.Equal(t, before+1, b.Live())
}
