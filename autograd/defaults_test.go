package autograd_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/surface"
	"github.com/cistern-ml/cistern/tensor"
)

// defaultsOf are the documented signatures of PyTorch 2.11, without what this package does not
// have, and what its zero values and missing options do.
type defaultsOf struct {
	names  string // of the types here
	python string
	got    func(b *tapetest.Bench, in *autograd.Initializer) string
}

// defaults is PyTorch's text of arguments: names and values in turn.
func defaults(pairs ...any) string {
	var all []string
	for i := 0; i < len(pairs); i += 2 {
		text := fmt.Sprint(pairs[i+1])
		switch v := pairs[i+1].(type) {
		case bool:
			text = map[bool]string{true: "True", false: "False"}[v]
		case float64:
			text = fmt.Sprintf("%.7g", v)
		}
		all = append(all, fmt.Sprintf("%v=%s", pairs[i], text))
	}
	return strings.Join(all, ", ")
}

func adamDefaults(o *autograd.Adam, b *tapetest.Bench) string {
	require.NoError(b.T, o.AddGroup(autograd.Parameters{{"q", b.Parameter(2)}}, autograd.AdamConfig{}))
	s := ruleOf(b, o, 1, autograd.AdamRule)
	require.Equal(b.T, ruleOf(b, o, 0, autograd.AdamRule), s, "another group")
	return defaults("lr", s.LR, "beta1", s.Beta1, "beta2", s.Beta2, "eps", s.Eps, "weight_decay", s.WeightDecay, "amsgrad", len(autograd.SlotsOf(o.Groups()[1])) == 3, "maximize", s.Maximize)
}

// ruleOf returns the rule of the next step of a parameter.
func ruleOf[R tensor.Rule](b *tapetest.Bench, o autograd.Optimizer, i int, rule func(*autograd.Update) (R, [3]*tensor.Tensor)) R {
	u, err := autograd.UpdateOf(b.Ctx, o, i)
	require.NoError(b.T, err)
	r, _ := rule(&u)
	return r
}

func scheduleDefault(s autograd.Schedule, reaches float64) (first float64, steps int) {
	for s.LR(1, steps) != reaches {
		steps++
	}
	return s.LR(1, 0), steps
}

// forward is what a layer makes of numbers.
func forward(b *tapetest.Bench, l autograd.Layer, training bool, data []float64, shape ...int) []float64 {
	tape := autograd.NoGrad(b.Ctx, b.RT)
	tape.SetTraining(training)
	y := l.Forward(tape, autograd.Upload(tape, data, shape...))
	require.NoError(b.T, tape.Err())
	values := tapetest.Read[float64](b, y.Value())
	require.NoError(b.T, tape.Close())
	return values
}

// epsOf is what a normalisation adds to a variance, or a mean square, of a².
func epsOf(b *tapetest.Bench, l autograd.Layer, a float64, data []float64, shape ...int) float64 {
	y := forward(b, l, true, data, shape...)[0]
	return a*a/(y*y) - a*a
}

// reducedBy is "mean" if the loss is that number.
func reducedBy(b *tapetest.Bench, f func(t *autograd.Tape) *autograd.Variable, mean float64) string {
	tape := autograd.NoGrad(b.Ctx, b.RT)
	got := f(tape).Item()
	require.NoError(b.T, tape.Close())
	if math.Abs(got-mean) < 1e-12 {
		return "mean"
	}
	return fmt.Sprint(got)
}

var allDefaults = []defaultsOf{
	{"AdamConfig", "lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0, amsgrad=False, maximize=False", func(b *tapetest.Bench, in *autograd.Initializer) string {
		return adamDefaults(autograd.Own(in, autograd.NewAdam(autograd.Parameters{{"p", b.Parameter(1)}}, autograd.AdamConfig{})), b)
	}},
	{"AdamConfig", "lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01, amsgrad=False, maximize=False", func(b *tapetest.Bench, in *autograd.Initializer) string {
		return adamDefaults(autograd.Own(in, autograd.NewAdamW(autograd.Parameters{{"p", b.Parameter(1)}}, autograd.AdamConfig{})), b)
	}},
	{"SGDConfig", "lr=0.001, momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False", func(b *tapetest.Bench, in *autograd.Initializer) string {
		s := ruleOf(b, autograd.Own(in, autograd.NewSGD(autograd.Parameters{{"p", b.Parameter(1)}}, autograd.SGDConfig{})), 0, autograd.SGDRule)
		return defaults("lr", s.LR, "momentum", s.Momentum, "dampening", s.Dampening, "weight_decay", s.WeightDecay, "nesterov", s.Nesterov, "maximize", s.Maximize)
	}},
	{"RMSpropConfig", "lr=0.01, alpha=0.99, eps=1e-08, weight_decay=0, momentum=0, centered=False, maximize=False", func(b *tapetest.Bench, in *autograd.Initializer) string {
		o := autograd.Own(in, autograd.NewRMSprop(autograd.Parameters{{"p", b.Parameter(1)}}, autograd.RMSpropConfig{}))
		s := ruleOf(b, o, 0, autograd.RMSpropRule)
		return defaults("lr", s.LR, "alpha", s.Alpha, "eps", s.Eps, "weight_decay", s.WeightDecay, "momentum", s.Momentum, "centered", len(autograd.SlotsOf(o.Groups()[0])) == 3, "maximize", s.Maximize)
	}},
	{"AdagradConfig", "lr=0.01, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, maximize=False", func(b *tapetest.Bench, in *autograd.Initializer) string {
		o := autograd.Own(in, autograd.NewAdagrad(autograd.Parameters{{"p", b.Parameter(1)}}, autograd.AdagradConfig{}))
		s := ruleOf(b, o, 0, autograd.AdagradRule)
		return defaults("lr", s.LR, "lr_decay", s.LRDecay, "weight_decay", s.WeightDecay, "initial_accumulator_value", autograd.SlotsOf(o.Groups()[0])[0].Fill, "eps", s.Eps, "maximize", s.Maximize)
	}},
	{"StepLR", "gamma=0.1", func(*tapetest.Bench, *autograd.Initializer) string {
		return defaults("gamma", autograd.StepLR{Size: 1}.LR(1, 1))
	}},
	{"MultiStepLR", "gamma=0.1", func(*tapetest.Bench, *autograd.Initializer) string {
		return defaults("gamma", autograd.MultiStepLR{Milestones: []int{1}}.LR(1, 1))
	}},
	{"ConstantLR", "factor=0.3333333, total_iters=5", func(*tapetest.Bench, *autograd.Initializer) string {
		factor, n := scheduleDefault(autograd.ConstantLR{}, 1)
		return defaults("factor", factor, "total_iters", n)
	}},
	{"LinearLR", "start_factor=0.3333333, end_factor=1, total_iters=5", func(*tapetest.Bench, *autograd.Initializer) string {
		factor, n := scheduleDefault(autograd.LinearLR{}, autograd.LinearLR{}.LR(1, 99))
		return defaults("start_factor", factor, "end_factor", autograd.LinearLR{}.LR(1, 99), "total_iters", n)
	}},
	{"CosineAnnealingLR", "eta_min=0", func(*tapetest.Bench, *autograd.Initializer) string {
		return defaults("eta_min", autograd.CosineAnnealingLR{TMax: 3}.LR(1, 3))
	}},
	{"OneCycleLR", "pct_start=0.3, anneal_strategy=cos, cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25, final_div_factor=10000, three_phase=False",
		func(*tapetest.Bench, *autograd.Initializer) string {
			s := autograd.OneCycleLR{Max: 1, Steps: 100}
			first, peak := scheduleDefault(s, 1)
			last := s.LR(0, 99)
			high, cycles := s.Momentum(0)
			low, _ := s.Momentum(peak)
			strategy, half := "cos", (1+peak)/2
			if math.Abs(s.LR(0, half)-(first+(1-first)*float64(half)/float64(peak))) < 1e-9 {
				strategy = "linear"
			}
			return defaults("pct_start", float64(peak+1)/100, "anneal_strategy", strategy, "cycle_momentum", cycles, "base_momentum", low, "max_momentum", high,
				"div_factor", 1/first, "final_div_factor", first/last, "three_phase", math.Abs(s.LR(0, 2*peak)-first) < 1e-9)
		}},
	{"Linear", "bias=True", func(_ *tapetest.Bench, in *autograd.Initializer) string {
		return defaults("bias", in.Linear(1, 1).Bias != nil)
	}},
	{"Convolution", "stride=1, padding=0, dilation=1, groups=1, bias=True", func(b *tapetest.Bench, in *autograd.Initializer) string {
		l := in.Conv2d(2, 2, 3)
		l.Config.Groups = 0
		require.Len(b.T, forward(b, l, true, make([]float64, 2*7*7), 1, 2, 7, 7), 2*5*5) // of another stride, padding or dilation it is of another size
		return defaults("stride", 1, "padding", 0, "dilation", 1, "groups", 2/l.Weight.Value().Shape()[1], "bias", l.Bias != nil)
	}},
	{"Convolution", "stride=1, padding=0, output_padding=0, dilation=1, groups=1, bias=True", func(b *tapetest.Bench, in *autograd.Initializer) string {
		l := in.ConvTranspose2d(2, 2, 3)
		require.Len(b.T, forward(b, l, true, make([]float64, 2*7*7), 1, 2, 7, 7), 2*9*9)
		return defaults("stride", 1, "padding", 0, "output_padding", 0, "dilation", 1, "groups", 2/l.Weight.Value().Shape()[1], "bias", l.Bias != nil)
	}},
	{"BatchNorm", "eps=1e-05, momentum=0.1, affine=True, track_running_stats=True", func(b *tapetest.Bench, in *autograd.Initializer) string {
		l := in.BatchNorm(1)
		forward(b, l, true, []float64{1, 1}, 2, 1)
		return defaults("eps", epsOf(b, in.BatchNorm(1), 1e-3, []float64{1e-3, -1e-3}, 2, 1), "momentum", tapetest.Read[float64](b, l.Mean)[0], "affine", l.Weight != nil && l.Bias != nil,
			"track_running_stats", l.Batches != nil)
	}},
	{"LayerNorm", "eps=1e-05, elementwise_affine=True, bias=True", func(b *tapetest.Bench, in *autograd.Initializer) string {
		l := in.LayerNorm(2)
		return defaults("eps", epsOf(b, l, 1e-3, []float64{1e-3, -1e-3}, 1, 2), "elementwise_affine", l.Weight != nil, "bias", l.Bias != nil)
	}},
	{"GroupNorm", "eps=1e-05, affine=True", func(b *tapetest.Bench, in *autograd.Initializer) string {
		l := in.GroupNorm(1, 2)
		return defaults("eps", epsOf(b, l, 1e-3, []float64{1e-3, -1e-3}, 1, 2), "affine", l.Weight != nil && l.Bias != nil)
	}},
	{"RMSNorm", "eps=2.220446e-16, elementwise_affine=True", func(b *tapetest.Bench, in *autograd.Initializer) string { // None: torch.finfo(x.dtype).eps
		l := in.RMSNorm(2)
		return defaults("eps", epsOf(b, l, 1e-8, []float64{1e-8, 1e-8}, 1, 2), "elementwise_affine", l.Weight != nil)
	}},
	{"Embedding", "padding_idx=None, scale_grad_by_freq=False", func(_ *tapetest.Bench, in *autograd.Initializer) string {
		c := in.Embedding(2, 2).Config
		return defaults("padding_idx", map[bool]string{true: "None"}[c.PaddingIndex == nil], "scale_grad_by_freq", c.ScaleGradByFreq)
	}},
	{"RNN Recurrent", "num_layers=1, nonlinearity=tanh, bias=True, batch_first=False, dropout=0, bidirectional=False", func(_ *tapetest.Bench, in *autograd.Initializer) string {
		r := in.RNN(1, 1)
		return defaults("num_layers", len(r.Cells), "nonlinearity", map[tensor.RecurrentKind]string{tensor.RNNTanh: "tanh"}[r.Kind], "bias", r.Cells[0].BiasIH != nil,
			"batch_first", r.BatchFirst, "dropout", r.Dropout, "bidirectional", r.Bidirectional)
	}},
	{"LSTM", "num_layers=1, bias=True, batch_first=False, dropout=0, bidirectional=False", func(_ *tapetest.Bench, in *autograd.Initializer) string {
		r := in.LSTM(1, 1)
		return defaults("num_layers", len(r.Cells), "bias", r.Cells[0].BiasIH != nil, "batch_first", r.BatchFirst, "dropout", r.Dropout, "bidirectional", r.Bidirectional)
	}},
	{"GRU", "num_layers=1, bias=True, batch_first=False, dropout=0, bidirectional=False", func(_ *tapetest.Bench, in *autograd.Initializer) string {
		r := in.GRU(1, 1)
		return defaults("num_layers", len(r.Cells), "bias", r.Cells[0].BiasIH != nil, "batch_first", r.BatchFirst, "dropout", r.Dropout, "bidirectional", r.Bidirectional)
	}},
	{"MultiHeadAttention", "bias=True, kdim=None, vdim=None, batch_first=False", func(_ *tapetest.Bench, in *autograd.Initializer) string {
		m := in.MultiHeadAttention(2, 1)
		own := map[bool]string{true: "None"}[m.InWeight != nil]
		return defaults("bias", m.InBias != nil && m.Out.Bias != nil, "kdim", own, "vdim", own, "batch_first", m.BatchFirst)
	}},
	{"AttentionConfig", "attn_mask=None, is_causal=False, scale=None, enable_gqa=False", func(*tapetest.Bench, *autograd.Initializer) string {
		var c autograd.AttentionConfig // a Scale of 0 is 1/√E
		return defaults("attn_mask", map[bool]string{true: "None"}[c.Mask == nil], "is_causal", c.Causal, "scale", map[float64]string{0: "None"}[c.Scale], "enable_gqa", c.GQA)
	}},
	{"ELU", "alpha=1", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		return defaults("alpha", -forward(b, autograd.ELU{}, true, []float64{-99})[0])
	}},
	{"LeakyReLU", "negative_slope=0.01", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		return defaults("negative_slope", -forward(b, autograd.LeakyReLU{}, true, []float64{-1})[0])
	}},
	{"Softplus", "beta=1, threshold=20", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		y := forward(b, autograd.Softplus{}, true, []float64{0, 19.9, 20.1})
		require.True(b.T, y[1] > 19.9 && y[2] == 20.1, y)
		return defaults("beta", math.Ln2/y[0], "threshold", 20)
	}},
	{"Hardtanh", "min_val=-1, max_val=1", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		y := forward(b, autograd.Hardtanh{}, true, []float64{-9, 9})
		return defaults("min_val", y[0], "max_val", y[1])
	}},
	{"GELU", "approximate=none", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		exact := 0.5 * (1 + math.Erf(1/math.Sqrt2))
		return defaults("approximate", map[bool]string{true: "none"}[math.Abs(forward(b, autograd.GELU{}, true, []float64{1})[0]-exact) < 1e-12])
	}},
	{"Softmax", "dim=-1", func(b *tapetest.Bench, _ *autograd.Initializer) string { // PyTorch has none for this: it warns, and takes the first or the second dimension
		return defaults("dim", map[float64]int{0.5: -1}[forward(b, autograd.Softmax{}, true, []float64{1, 1}, 1, 2)[0]])
	}},
	{"LogSoftmax", "dim=-1", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		return defaults("dim", map[float64]int{-math.Ln2: -1}[forward(b, autograd.LogSoftmax{}, true, []float64{1, 1}, 1, 2)[0]])
	}},
	{"Dropout", "p=0", func(b *tapetest.Bench, _ *autograd.Initializer) string { // PyTorch's is 0.5; the field's comment says so
		return defaults("p", float64(len(forward(b, autograd.Dropout{}, true, []float64{1, 1, 1, 1}))-4))
	}},
	{"MaxPool2d", "stride=kernel_size, padding=0, dilation=1, ceil_mode=False", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		require.Len(b.T, forward(b, autograd.MaxPool2d{Kernel: []int{2}}, true, make([]float64, 25), 1, 1, 5, 5), 4)
		return defaults("stride", "kernel_size", "padding", 0, "dilation", 1, "ceil_mode", false)
	}},
	{"AvgPool2d", "stride=kernel_size, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		require.Len(b.T, forward(b, autograd.AvgPool2d{Kernel: []int{2}}, true, make([]float64, 25), 1, 1, 5, 5), 4)
		corner := forward(b, autograd.AvgPool2d{Kernel: []int{2}, Padding: []int{1}}, true, []float64{1, 1, 1, 1}, 1, 1, 2, 2)[0]
		return defaults("stride", "kernel_size", "padding", 0, "ceil_mode", false, "count_include_pad", corner == 0.25, "divisor_override", "None")
	}},
	{"Flatten", "start_dim=1, end_dim=-1", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		tape := autograd.NoGrad(b.Ctx, b.RT)
		defer tape.Close()
		require.Equal(b.T, tensor.Shape{2, 6}, autograd.Flatten{}.Forward(tape, autograd.Upload(tape, make([]float64, 12), 2, 2, 3)).Shape())
		return defaults("start_dim", 1, "end_dim", -1)
	}},
	{"Kaiming", "a=0, mode=fan_in, nonlinearity=leaky_relu", func(b *tapetest.Bench, in *autograd.Initializer) string {
		want, err := autograd.Gain("leaky_relu", 0)
		require.NoError(b.T, err)
		data := tapetest.Read[float64](b, in.Draw(autograd.InitKaimingUniform(autograd.Kaiming{}), 1000, 3).Value()) // within gain*sqrt(3/fan_in)
		require.InDelta(b.T, want, slices.Max(data), 0.01)
		return defaults("a", autograd.Kaiming{}.A, "mode", map[bool]string{false: "fan_in"}[autograd.Kaiming{}.FanOut], "nonlinearity", "leaky_relu")
	}},
	{"ParallelConfig", "bucket_cap_mb=25, broadcast_buffers=True", func(*tapetest.Bench, *autograd.Initializer) string {
		return defaults("bucket_cap_mb", autograd.DefaultBucketBytes>>20, "broadcast_buffers", !autograd.ParallelConfig{}.LocalBuffers)
	}},
	{"Tape.MSELoss", "reduction=mean", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		return defaults("reduction", reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
			return t.MSELoss(autograd.Upload(t, []float64{0, 2}), autograd.Upload(t, []float64{0, 0}))
		}, 2))
	}},
	{"Tape.L1Loss", "reduction=mean", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		return defaults("reduction", reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
			return t.L1Loss(autograd.Upload(t, []float64{0, 2}), autograd.Upload(t, []float64{0, 0}))
		}, 1))
	}},
	{"Tape.HuberLoss", "reduction=mean", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		return defaults("reduction", reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
			return t.HuberLoss(autograd.Upload(t, []float64{0, 2}), autograd.Upload(t, []float64{0, 0}), 1)
		}, 0.75))
	}},
	{"Tape.BCEWithLogits", "weight=None, reduction=mean, pos_weight=None", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		got := reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
			return t.BCEWithLogits(autograd.Upload(t, []float64{0, 0}), autograd.Upload(t, []float64{0, 1}))
		}, math.Ln2)
		return defaults("weight", "None", "reduction", got, "pos_weight", "None")
	}},
	{"Tape.CrossEntropy", "weight=None, ignore_index=-100, reduction=mean, label_smoothing=0", func(b *tapetest.Bench, _ *autograd.Initializer) string {
		labels := tapetest.Upload(b, []int32{0, -100, 0})
		got := reducedBy(b, func(t *autograd.Tape) *autograd.Variable {
			return t.CrossEntropy(autograd.Upload(t, []float64{3, 0, 5, 5, 3, 0}, 3, 2), labels)
		}, math.Log1p(math.Exp(-3)))
		return defaults("weight", "None", "ignore_index", -100, "reduction", got, "label_smoothing", 0)
	}},
}

// withoutDefaults are types all of whose numbers a program must give, or that have none.
const withoutDefaults = "ExponentialLR LambdaLR SequentialLR Sequential ReLU Identity Sigmoid Tanh SiLU LogSigmoid AdaptiveAvgPool2d"

// TestDefaultsArePyTorchs: what a program leaves out is what PyTorch 2.11 documents as the default,
// for every optimiser, schedule, layer, loss and configuration.
func TestDefaultsArePyTorchs(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := autograd.Init(b.Ctx, b.RT, autograd.Seed(1), autograd.Dtype(tensor.Float64))
	defer func() { require.NoError(t, in.Close()) }()
	known := map[string]bool{}
	for _, name := range strings.Fields(withoutDefaults) {
		known[name] = true
	}
	for _, d := range allDefaults {
		require.Equal(t, d.python, d.got(b, in), d.names)
		require.NoError(t, in.Err(), d.names)
		for _, name := range strings.Fields(d.names) {
			known[name] = true
		}
	}
	api := surface.Exported(t)
	for name, methods := range api.Methods {
		if strings.HasSuffix(name, "Config") || slices.Contains(methods, "Forward") || slices.Contains(methods, "LR") && !slices.Contains(methods, "SetLR") && name != "Scheduler" {
			require.True(t, known[name], "the defaults of %s are not compared", name)
		}
	}
	for _, method := range api.Methods["Tape"] {
		if strings.HasSuffix(method, "Loss") || strings.HasPrefix(method, "BCE") || strings.HasSuffix(method, "Entropy") {
			require.True(t, known["Tape."+method], "the defaults of %s are not compared", method)
		}
	}
}

// TestZeroIsNotTheDefault: where the default is another number 0 can be given.
func TestZeroIsNotTheDefault(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := autograd.Init(b.Ctx, b.RT, autograd.Dtype(tensor.Float64))
	defer func() { require.NoError(t, in.Close()) }()
	require.Zero(t, ruleOf(b, autograd.Own(in, autograd.NewAdamW(autograd.Parameters{{"p", b.Parameter(1)}}, autograd.AdamConfig{WeightDecay: new(0.0)})), 0, autograd.AdamRule).WeightDecay)
	require.Equal(t, []float64{0, 2}, forward(b, autograd.ELU{Alpha: new(0.0)}, true, []float64{-1, 2}))
	require.Equal(t, []float64{0, 2}, forward(b, autograd.LeakyReLU{Slope: new(0.0)}, true, []float64{-1, 2}))
	require.Equal(t, 1.0, forward(b, autograd.Softplus{Threshold: new(0.0)}, true, []float64{1})[0])
	norm := in.BatchNorm(1, autograd.Momentum(0))
	require.NoError(t, in.Err())
	require.Equal(t, 0.0, *norm.Momentum)
	x, still := []float64{2, 4, 9}, in.BatchNorm(1)
	require.Equal(t, forward(b, still, true, x, 3, 1), forward(b, norm, true, x, 3, 1), "a batch is normalised by its own statistics")
	require.Equal(t, []float64{0, 1}, append(tapetest.Read[float64](b, norm.Mean), tapetest.Read[float64](b, norm.Var)...), "and the running ones stay")
	require.Equal(t, []int64{1}, tapetest.Read[int64](b, norm.Batches))
	require.InDelta(t, 2, forward(b, norm, false, []float64{2}, 1, 1)[0], 1e-4)
}
