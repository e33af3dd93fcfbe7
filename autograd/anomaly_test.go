package autograd_test

import (
	"context"
	"errors"
	"maps"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

var nan, inf = math.NaN(), math.Inf(1)

// TestAnomalies: the first tensor that is not finite is named, with its operation, module and line.
func TestAnomalies(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	ways := maps.Clone(tapetest.Minimizers)
	ways["assigned"] = func(tape onTape, loss variable, opt optim.Optimizer) {
		tape.Hook(new(assigns)) // takes each gradient at once, as a Parallel does
		if _, err := tape.Backward(loss); err == nil {
			require.NoError(t, opt.ZeroGrad(b.Ctx))
		}
	}
	for name, c := range map[string]struct {
		w, x  []float64 // a parameter "net.w", and an input
		do    func(t onTape, w, x variable) variable
		want  autograd.AnomalyError
		clean bool
	}{
		"a result": {w: []float64{1, 2, 3}, x: []float64{1, -1, 0}, do: func(t onTape, w, x variable) variable { return t.Add(w, t.Log(x)) },
			want: autograd.AnomalyError{Op: "Log", Tensor: "the result", NaNs: 1, Infs: 1}},
		"a module": {w: []float64{1, -2}, x: []float64{1, 1}, do: func(t onTape, w, x variable) variable {
			return t.Module("head", func() variable { return t.Mul(t.Log(w), x) })
		}, want: autograd.AnomalyError{Op: "Log", Tensor: "the result", NaNs: 1, Module: "head"}},
		"a parameter": {w: []float64{1, nan}, x: []float64{1, 1}, do: func(t onTape, w, x variable) variable { return t.Mul(x, w) },
			want: autograd.AnomalyError{Op: "Mul", Tensor: `operand 2, parameter "net.w"`, NaNs: 1}},
		"an infinite parameter": {w: []float64{1, inf}, x: []float64{1, 1}, do: func(t onTape, w, x variable) variable { return t.Mul(x, w) },
			want: autograd.AnomalyError{Op: "Mul", Tensor: `operand 2, parameter "net.w"`, Infs: 1}},
		"an input": {w: []float64{1, 1}, x: []float64{nan, 1}, do: func(t onTape, w, x variable) variable { return t.Exp(t.Mul(x, w)) },
			want: autograd.AnomalyError{Op: "Mul", Tensor: "operand 1", NaNs: 1}},
		"a mask": {w: []float64{1, 1}, x: []float64{-inf, 0}, do: func(t onTape, w, x variable) variable { return t.Softmax(t.Add(w, x)) }, clean: true},
		"a filled mask": {w: []float64{1, 1}, x: []float64{1, 2}, do: func(t onTape, w, x variable) variable {
			return t.Softmax(t.MaskedFill(t.Mul(w, x), t.Less(x, autograd.Upload(t, []float64{1.5}, 1)), -inf))
		}, clean: true},
		"a mask of keys": {w: []float64{1, 1, 1, 1}, x: []float64{1, 2, 3, 4}, do: func(t onTape, w, x variable) variable {
			q := t.Reshape(t.Mul(w, x), 1, 2, 2)
			return t.ScaledDotProductAttention(q, q, q, autograd.AttentionConfig{KeyPadding: autograd.Upload(t, []uint8{0, 1}, 1, 2)})
		}, clean: true},
		"causal weights": {w: []float64{1, 1, 1, 1}, x: []float64{1, 2, 3, 4}, do: func(t onTape, w, x variable) variable {
			q := t.Reshape(t.Mul(w, x), 1, 2, 2)
			return t.AttentionWeights(q, q, autograd.AttentionConfig{Causal: true})
		}, clean: true},
		"a target": {w: []float64{1, 1}, x: []float64{inf, 0}, do: func(t onTape, w, x variable) variable {
			return t.MSELoss(w, x.Value())
		}, want: autograd.AnomalyError{Op: "MSELoss", Backward: true, Tensor: `the gradient, of parameter "net.w"`, Infs: 1}},
		"a mask that becomes NaN": {w: []float64{1, 1}, x: []float64{-inf, 0}, do: func(t onTape, w, x variable) variable {
			masked := t.Add(w, x)
			return t.Sub(masked, masked)
		}, want: autograd.AnomalyError{Op: "Sub", Tensor: "the result", NaNs: 1}},
		"a gradient": {w: []float64{0, 4, 1}, x: []float64{1, 1, 1}, do: func(t onTape, w, x variable) variable {
			return t.Module("root", func() variable { return t.Sqrt(t.Mul(w, x)) })
		}, want: autograd.AnomalyError{Op: "Sqrt", Backward: true, Tensor: "the gradient, of an operand", Infs: 1, Module: "root"}},
		"the last gradient": {w: []float64{0, 4, 1}, x: []float64{1, 1, 1}, do: func(t onTape, w, _ variable) variable { return t.Sqrt(w) },
			want: autograd.AnomalyError{Op: "Sqrt", Backward: true, Tensor: `the gradient, of parameter "net.w"`, Infs: 1}},
		"a gradient in a checkpoint": {w: []float64{0, 4, 1}, x: []float64{1, 1, 1}, do: func(t onTape, w, x variable) variable {
			return remat.Checkpoint(t, func() variable { return t.Exp(t.Sqrt(t.Mul(w, x))) })
		}, want: autograd.AnomalyError{Op: "Sqrt", Backward: true, Tensor: "the gradient, of an operand", Infs: 1}},
		"a result in a checkpoint": {w: []float64{1, 2, 3}, x: []float64{1, -1, 0}, do: func(t onTape, w, x variable) variable {
			return remat.Checkpoint(t, func() variable { return t.Mul(w, t.Log(x)) })
		}, want: autograd.AnomalyError{Op: "Log", Tensor: "the result", NaNs: 1, Infs: 1}},
		"a clean checkpoint": {w: []float64{1, 2}, x: []float64{1, 3}, do: func(t onTape, w, x variable) variable {
			return remat.Checkpoint(t, func() variable { return t.Dropout(t.Exp(t.Sin(t.Mul(w, x))), 0.5) })
		}, clean: true},
	} {
		p := b.ParameterOf(tapetest.Upload(b, c.w))
		ps := autograd.Parameters{{Name: "net.w", Parameter: p}}
		sgd := optim.NewSGD(ps, optim.SGDConfig{LR: new(0.5)})
		require.NoError(t, sgd.Err())
		for way, minimize := range ways {
			tape := autograd.NewTape(b.Ctx, b.RT)
			autograd.DetectAnomaly(tape)
			autograd.DetectAnomaly(tape)
			tape.SetSeed(1)
			x := tapetest.Upload(b, c.x)
			minimize(tape, tape.Sum(c.do(tape, tape.Param(p), tape.Input(x))), sgd)
			err := tape.Close()
			require.NoError(t, x.Release())
			if c.clean {
				require.NoError(t, err, name)
				continue
			}
			var got *autograd.AnomalyError
			require.ErrorAs(t, err, &got, "%s, %s", name, way)
			c.want.Dtype, c.want.Shape, c.want.Elements, c.want.Line = tensor.Float64, tensor.Shape{len(c.w)}, len(c.w), got.Line
			require.Equal(t, c.want, *got, "%s, %s", name, way)
			require.True(t, strings.HasPrefix(got.Line, "anomaly_test.go:"), "%s, %s: %s", name, way, got.Line)
			require.Contains(t, err.Error(), got.Line)
			require.Contains(t, err.Error(), "autograd: "+got.Op)
			require.Equal(t, len(c.w), len(tapetest.Read[float64](b, p.Value())))
			for i, v := range tapetest.Read[float64](b, p.Value()) {
				require.True(t, v == c.w[i] || math.IsNaN(c.w[i]), "nothing was updated")
			}
			require.Nil(t, p.Grad())
		}
		require.NoError(t, errors.Join(sgd.Close(), p.Release()))
	}
}

// TestAnomaliesElsewhere: on a tape without a backward pass, in 16 bits, in a gradient of an
// earlier pass. A capture is refused, and nothing is checked after a Reset.
func TestAnomaliesElsewhere(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	x := tapetest.Upload(b, []float64{-1, 2})
	var got *autograd.AnomalyError
	tape := autograd.NoGrad(b.Ctx, b.RT)
	autograd.DetectAnomaly(tape)
	tape.Sum(tape.Log(tape.Input(x)))
	require.ErrorAs(t, tape.Reset(b.Ctx), &got)
	require.Equal(t, "Log", got.Op)
	tape.Sum(tape.Log(tape.Input(x)))
	require.NoError(t, tape.Close())

	tape = autograd.NoGrad(b.Ctx, b.RT)
	autograd.DetectAnomaly(tape)
	tape.Exp(tape.Input(tapetest.Upload(b, []float64{-inf, 0})))
	tape.Normal(0, 1e308, tensor.Float64, 2000)
	require.ErrorAs(t, tape.Close(), &got)
	require.Equal(t, "Normal", got.Op, "an operation without operands, after one of a mask")

	in := nn.Init(b.Ctx, b.RT, nn.ComputeDtype(tensor.BFloat16))
	w := in.Parameter([]float64{3e38, 1})
	for _, tape := range in.Steps(1) {
		autograd.DetectAnomaly(tape)
		tape.Square(tape.Param(w))
	}
	require.ErrorAs(t, in.Close(), &got)
	require.Equal(t, []any{"Square", tensor.BFloat16, 0, 1}, []any{got.Op, got.Dtype, got.NaNs, got.Infs})

	p := b.ParameterOf(tapetest.Upload(b, []float64{1, 2}))
	p.SetGrad(tapetest.Upload(b, []float64{nan, 0}))
	tape = autograd.NewTape(b.Ctx, b.RT)
	autograd.DetectAnomaly(tape)
	_, err := tape.Backward(tape.Sum(tape.Square(tape.Param(p))))
	require.ErrorAs(t, err, &got)
	require.ErrorContains(t, err, "that it had before")
	require.Error(t, tape.Close())

	_, err = b.RT.Capture(b.Ctx, func(ctx context.Context) error {
		tape := autograd.NewTape(ctx, b.RT)
		autograd.DetectAnomaly(tape)
		return tape.Close()
	})
	require.ErrorIs(t, err, tensor.ErrCapturing)
	autograd.DetectAnomaly(nil)
	require.NoError(t, errors.Join(x.Release(), p.Release()))
}

// TestNoAnomaly: a step that is checked is bit-identical to one that is not, and leaves nothing.
func TestNoAnomaly(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	var all [2][]float32
	for i := range all {
		in := nn.Init(b.Ctx, b.RT, nn.Seed(1))
		model := nn.Sequential{in.Linear(3, 8), nn.ReLU{}, in.BatchNorm(8), nn.Dropout{P: 0.5}, in.Linear(8, 2)}
		x, y := in.Tensor([]float64{1, 2, 3, 3, 1, 2, 0, 1, 1, 2, 2, 2}, 4, 3), in.Labels([]int{0, 1, 1, 0}, 2)
		adam := nn.Own(in, optim.NewAdam(model.Parameters(), optim.AdamConfig{}))
		require.NoError(t, errors.Join(in.Err(), adam.Prepare(b.Ctx)))
		live, _ := b.RT.Live()
		for _, tape := range in.Steps(5) {
			if i == 1 {
				autograd.DetectAnomaly(tape)
			}
			optim.Minimize(tape, tape.CrossEntropy(model.Forward(tape, tape.Input(x)), y), adam)
		}
		require.NoError(t, in.Err())
		now, _ := b.RT.Live()
		require.Equal(t, live, now)
		for _, p := range model.Parameters() {
			all[i] = append(all[i], tapetest.Read[float32](b, p.Value())...)
		}
		require.NoError(t, in.Close())
	}
	require.Equal(t, all[0], all[1])
}

// poison leaves NaN in the memory that a backward step takes.
type poison struct {
	autograd.NoHooks
	b *tapetest.Bench
}

func (p *poison) Load(*autograd.Tape, *autograd.Node, int) error {
	var all autograd.Parameters
	for range 64 {
		all = append(all, autograd.Named{Parameter: p.b.ParameterOf(tapetest.Upload(p.b, []float64{nan, nan}))})
	}
	return all.Release()
}

// TestUnreadResultsAreNoAnomaly: a checkpoint's second run skips operations whose results are not
// read, and the memory of these is uninitialised.
func TestUnreadResultsAreNoAnomaly(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	p := b.ParameterOf(tapetest.Upload(b, []float64{1, 2}))
	tape := autograd.NewTape(b.Ctx, b.RT)
	autograd.DetectAnomaly(tape)
	tape.Hook(&poison{b: b})
	w := tape.Param(p)
	y := remat.Checkpoint(tape, func() variable { return tape.MulScalar(tape.Sin(tape.Mul(w, w)), 2) })
	_, err := tape.Backward(tape.Sum(y))
	require.NoError(t, errors.Join(err, tape.Close(), p.Release()))
}
