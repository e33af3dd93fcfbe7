package optim_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// ruleOf returns the rule of the next step of a parameter.
func ruleOf[R tensor.Rule](b *tapetest.Bench, o optim.Optimizer, i int, rule func(*optim.Update) (R, [3]*tensor.Tensor)) R {
	u, err := optim.UpdateOf(b.Ctx, o, i)
	require.NoError(b.T, err)
	r, _ := rule(&u)
	return r
}

func adamDefaults(o *optim.Adam, b *tapetest.Bench) string {
	require.NoError(b.T, o.AddGroup(autograd.Parameters{{Name: "q", Parameter: b.Parameter(2)}}, optim.AdamConfig{}))
	s := ruleOf(b, o, 1, optim.AdamRule)
	require.Equal(b.T, ruleOf(b, o, 0, optim.AdamRule), s, "another group")
	return tapetest.Signature("lr", s.LR, "beta1", s.Beta1, "beta2", s.Beta2, "eps", s.Eps, "weight_decay", s.WeightDecay, "amsgrad", len(optim.SlotsOf(o.Groups()[1])) == 3, "maximize", s.Maximize)
}

func scheduleDefault(s optim.Schedule, reaches float64) (first float64, steps int) {
	for s.LR(1, steps) != reaches {
		steps++
	}
	return s.LR(1, 0), steps
}

// plateauDefaults are derived from the steps after which the rate falls, and by how much.
func plateauDefaults(b *tapetest.Bench, in *nn.Initializer) string {
	falls := func(lr float64, cfg optim.PlateauConfig, metric func(step int) float64) (rates []float64, steps []int) {
		sgd := nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.SGDConfig{LR: &lr}))
		s, err := optim.NewReduceLROnPlateau(sgd, cfg)
		require.NoError(b.T, err)
		for step := range 60 {
			was := sgd.LR()
			require.NoError(b.T, s.Step(metric(step)))
			if sgd.LR() != was {
				rates, steps = append(rates, sgd.LR()), append(steps, step)
			}
		}
		return rates, steps
	}
	// better reports whether a metric by this much below the best one is better.
	better := func(best, by float64) bool {
		_, steps := falls(1, optim.PlateauConfig{Patience: new(0)}, func(step int) float64 { return best - by*float64(min(step, 1)) })
		return steps[0] == 2
	}
	rates, steps := falls(1, optim.PlateauConfig{}, func(int) float64 { return 1 })
	mode := "max"
	if _, none := falls(1, optim.PlateauConfig{}, func(step int) float64 { return -float64(step) }); len(none) == 0 {
		mode = "min"
	}
	threshold, of := 0.0, "abs"
	if better(1, 1.01e-4) && !better(1, 0.99e-4) {
		threshold = 1e-4
	}
	if better(100, 1.01e-2) && !better(100, 0.99e-2) {
		of = "rel"
	}
	eps := 0.0
	stays, _ := falls(1.1e-8, optim.PlateauConfig{}, func(int) float64 { return 1 })
	if goes, _ := falls(1.2e-8, optim.PlateauConfig{}, func(int) float64 { return 1 }); len(goes) > 0 && len(stays) == 0 {
		eps = 1e-8
	}
	least, _ := falls(1, optim.PlateauConfig{Patience: new(0), Eps: new(0.0)}, func(int) float64 { return 1 })
	return tapetest.Signature("mode", mode, "factor", rates[0], "patience", steps[0]-1, "threshold", threshold, "threshold_mode", of,
		"cooldown", steps[1]-steps[0]-11, "min_lr", math.Round(1e9*least[len(least)-1])/1e9, "eps", eps)
}

// TestDefaultsOfOptimizersArePyTorchs: options that are left out have the defaults that PyTorch
// 2.11 documents.
func TestDefaultsOfOptimizersArePyTorchs(t *testing.T) {
	tapetest.RequireDefaults(t, "ExponentialLR LambdaLR SequentialLR", []tapetest.Default{
		{Names: "AdamConfig", Python: "lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0, amsgrad=False, maximize=False", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			return adamDefaults(nn.Own(in, optim.NewAdam(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.AdamConfig{})), b)
		}},
		{Names: "AdamConfig", Python: "lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01, amsgrad=False, maximize=False", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			return adamDefaults(nn.Own(in, optim.NewAdamW(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.AdamConfig{})), b)
		}},
		{Names: "SGDConfig", Python: "lr=0.001, momentum=0, dampening=0, weight_decay=0, nesterov=False, maximize=False", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			s := ruleOf(b, nn.Own(in, optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.SGDConfig{})), 0, optim.SGDRule)
			return tapetest.Signature("lr", s.LR, "momentum", s.Momentum, "dampening", s.Dampening, "weight_decay", s.WeightDecay, "nesterov", s.Nesterov, "maximize", s.Maximize)
		}},
		{Names: "RMSpropConfig", Python: "lr=0.01, alpha=0.99, eps=1e-08, weight_decay=0, momentum=0, centered=False, maximize=False", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			o := nn.Own(in, optim.NewRMSprop(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.RMSpropConfig{}))
			s := ruleOf(b, o, 0, optim.RMSpropRule)
			return tapetest.Signature("lr", s.LR, "alpha", s.Alpha, "eps", s.Eps, "weight_decay", s.WeightDecay, "momentum", s.Momentum, "centered", len(optim.SlotsOf(o.Groups()[0])) == 3, "maximize", s.Maximize)
		}},
		{Names: "AdagradConfig", Python: "lr=0.01, lr_decay=0, weight_decay=0, initial_accumulator_value=0, eps=1e-10, maximize=False", Got: func(b *tapetest.Bench, in *nn.Initializer) string {
			o := nn.Own(in, optim.NewAdagrad(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.AdagradConfig{}))
			s := ruleOf(b, o, 0, optim.AdagradRule)
			return tapetest.Signature("lr", s.LR, "lr_decay", s.LRDecay, "weight_decay", s.WeightDecay, "initial_accumulator_value", optim.SlotsOf(o.Groups()[0])[0].Fill, "eps", s.Eps, "maximize", s.Maximize)
		}},
		{Names: "StepLR", Python: "gamma=0.1", Got: func(*tapetest.Bench, *nn.Initializer) string {
			return tapetest.Signature("gamma", optim.StepLR{Size: 1}.LR(1, 1))
		}},
		{Names: "MultiStepLR", Python: "gamma=0.1", Got: func(*tapetest.Bench, *nn.Initializer) string {
			return tapetest.Signature("gamma", optim.MultiStepLR{Milestones: []int{1}}.LR(1, 1))
		}},
		{Names: "ConstantLR", Python: "factor=0.3333333, total_iters=5", Got: func(*tapetest.Bench, *nn.Initializer) string {
			factor, n := scheduleDefault(optim.ConstantLR{}, 1)
			return tapetest.Signature("factor", factor, "total_iters", n)
		}},
		{Names: "LinearLR", Python: "start_factor=0.3333333, end_factor=1, total_iters=5", Got: func(*tapetest.Bench, *nn.Initializer) string {
			factor, n := scheduleDefault(optim.LinearLR{}, optim.LinearLR{}.LR(1, 99))
			return tapetest.Signature("start_factor", factor, "end_factor", optim.LinearLR{}.LR(1, 99), "total_iters", n)
		}},
		{Names: "CosineAnnealingLR", Python: "eta_min=0", Got: func(*tapetest.Bench, *nn.Initializer) string {
			return tapetest.Signature("eta_min", optim.CosineAnnealingLR{TMax: 3}.LR(1, 3))
		}},
		{Names: "CosineAnnealingWarmRestarts", Python: "T_mult=1, eta_min=0", Got: func(*tapetest.Bench, *nn.Initializer) string {
			s, steps := optim.CosineAnnealingWarmRestarts{T0: 7}, 8
			for s.LR(1, steps) != 1 {
				steps++
			}
			return tapetest.Signature("T_mult", steps/7-1, "eta_min", math.Round(1e9*optim.CosineAnnealingWarmRestarts{T0: 1e9}.LR(1, 1e9-1))/1e9)
		}},
		{Names: "PlateauConfig", Python: "mode=min, factor=0.1, patience=10, threshold=0.0001, threshold_mode=rel, cooldown=0, min_lr=0, eps=1e-08", Got: plateauDefaults},
		{Names: "OneCycleLR", Python: "pct_start=0.3, anneal_strategy=cos, cycle_momentum=True, base_momentum=0.85, max_momentum=0.95, div_factor=25, final_div_factor=10000, three_phase=False",
			Got: func(*tapetest.Bench, *nn.Initializer) string {
				s := optim.OneCycleLR{Max: 1, Steps: 100}
				first, peak := scheduleDefault(s, 1)
				last := s.LR(0, 99)
				high, cycles := s.Momentum(0)
				low, _ := s.Momentum(peak)
				strategy, half := "cos", (1+peak)/2
				if math.Abs(s.LR(0, half)-(first+(1-first)*float64(half)/float64(peak))) < 1e-9 {
					strategy = "linear"
				}
				return tapetest.Signature("pct_start", float64(peak+1)/100, "anneal_strategy", strategy, "cycle_momentum", cycles, "base_momentum", low, "max_momentum", high,
					"div_factor", 1/first, "final_div_factor", first/last, "three_phase", math.Abs(s.LR(0, 2*peak)-first) < 1e-9)
			}},
	})
}

// TestZeroWeightDecay: a weight decay of 0 is not the default, and can be set.
func TestZeroWeightDecay(t *testing.T) {
	b := tapetest.Open(t, 64<<20)
	in := nn.Init(b.Ctx, b.RT, nn.Dtype(tensor.Float64))
	defer func() { require.NoError(t, in.Close()) }()
	require.Zero(t, ruleOf(b, nn.Own(in, optim.NewAdamW(autograd.Parameters{{Name: "p", Parameter: b.Parameter(1)}}, optim.AdamConfig{WeightDecay: new(0.0)})), 0, optim.AdamRule).WeightDecay)
}
