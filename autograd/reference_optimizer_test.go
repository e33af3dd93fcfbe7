package autograd_test

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

func init() {
	referenceOps["clip_grad_norm"] = clipReference
	referenceOps["clip_grad_value"] = clipValueReference
	referenceOps["schedule"] = scheduleReference
	referenceOps["optimizer"] = optimizerReference
}

// norm is an argument that may be a string, such as "inf".
func (r *referenceRun) norm(name string, standard float64) float64 {
	if text, ok := r.Args[name].(string); ok {
		v, err := strconv.ParseFloat(text, 64)
		require.NoError(r.t, err)
		return v
	}
	return r.float(name, standard)
}

// gradients are parameters whose gradients are the inputs.
func (r *referenceRun) gradients() (ps autograd.Parameters) {
	for i := range r.Inputs {
		grad := r.upload(r.Inputs[i].Values, r.Inputs[i].Shape...)
		p := r.b.ParameterOf(r.upload(r.Inputs[i].Values, r.Inputs[i].Shape...))
		p.SetGrad(grad)
		ps = append(ps, autograd.Named{Name: i, Parameter: p})
	}
	slices.SortFunc(ps, func(a, b autograd.Named) int { return strings.Compare(a.Name, b.Name) })
	return ps
}

func clipReference(r *referenceRun) *autograd.Variable {
	ps := r.gradients()
	defer func() { require.NoError(r.t, ps.Release()) }()
	total, err := optim.ClipGradNormOf(r.b.Ctx, ps, r.float("max_norm", 1), r.norm("norm_type", 2))
	require.NoError(r.t, err)
	r.same("the norm", total, r.output())
	require.NoError(r.t, total.Release())
	for _, p := range ps {
		r.same(p.Name, p.Grad(), r.Grads[p.Name])
	}
	return nil
}

func clipValueReference(r *referenceRun) *autograd.Variable {
	ps := r.gradients()
	defer func() { require.NoError(r.t, ps.Release()) }()
	require.NoError(r.t, optim.ClipGradValue(r.b.Ctx, ps, r.float("clip_value", 1)))
	for _, p := range ps {
		r.same(p.Name, p.Grad(), r.Grads[p.Name])
	}
	return nil
}

// scheduleReference has an SGD with a rate of 0.1, and the rates of the steps from 0 on.
func scheduleReference(r *referenceRun) *autograd.Variable {
	p := r.b.ParameterOf(r.upload(make([]refNumber, 1), 1))
	defer func() { require.NoError(r.t, p.Release()) }()
	opt, err := tapetest.WithErr(optim.NewSGD(autograd.Parameters{{Name: "p", Parameter: p}}, optim.SGDConfig{LR: new(r.float("lr", 0.1))}))
	require.NoError(r.t, err)
	defer opt.Close()
	s, err := optim.NewScheduler(opt, scheduleOf(r.t, r.string("name", "")))
	require.NoError(r.t, err)
	var rates []float64
	want := r.output()
	for range want {
		rates = append(rates, s.LR())
		require.NoError(r.t, s.Step())
	}
	requireClose(r.t, "the learning rates", rates, want, 1e-9)
	return nil
}

var positionalOfSchedules = map[string][]string{
	"StepLR": {"step_size", "gamma"}, "MultiStepLR": {"milestones", "gamma"}, "ExponentialLR": {"gamma"}, "CosineAnnealingLR": {"T_max", "eta_min"},
	"LinearLR": {"start_factor", "end_factor", "total_iters"}, "ConstantLR": {"factor", "total_iters"}, "OneCycleLR": {"max_lr", "total_steps"},
}

// scheduleOf reads a schedule, or a sequence of them with "then" between: each but the last ends
// after its own number of steps.
func scheduleOf(t testing.TB, text string) optim.Schedule {
	t.Helper()
	parts := strings.Split(text, " then ")
	if len(parts) == 1 {
		s, _ := oneScheduleOf(t, text)
		return s
	}
	var all optim.SequentialLR
	end := 0
	for i, part := range parts {
		s, steps := oneScheduleOf(t, part)
		all.Schedules = append(all.Schedules, s)
		if end += steps; i+1 < len(parts) {
			require.Positive(t, steps, "%s has no end", part)
			all.Milestones = append(all.Milestones, end)
		}
	}
	return all
}

func oneScheduleOf(t testing.TB, text string) (s optim.Schedule, steps int) {
	t.Helper()
	c := parsePython(t, text, positionalOfSchedules)
	defer c.done()
	switch c.name {
	case "StepLR":
		return optim.StepLR{Size: c.intOr("step_size", 0), Gamma: c.float("gamma")}, 0
	case "MultiStepLR":
		m := optim.MultiStepLR{Gamma: c.float("gamma")}
		for _, v := range c.floats("milestones") {
			m.Milestones = append(m.Milestones, int(v))
		}
		return m, 0
	case "ExponentialLR":
		return optim.ExponentialLR{Gamma: c.floatOr("gamma", math.NaN())}, 0
	case "ConstantLR":
		return optim.ConstantLR{Factor: c.float("factor"), Iters: c.int("total_iters")}, c.intOr("total_iters", 5)
	case "LinearLR":
		return optim.LinearLR{Start: c.float("start_factor"), End: c.float("end_factor"), Iters: c.int("total_iters")}, c.intOr("total_iters", 5)
	case "CosineAnnealingLR":
		return optim.CosineAnnealingLR{TMax: c.intOr("T_max", 0), Min: c.floatOr("eta_min", 0)}, c.intOr("T_max", 0)
	case "CosineAnnealingWarmRestarts":
		return optim.CosineAnnealingWarmRestarts{T0: c.intOr("T_0", 0), TMult: c.intOr("T_mult", 1), Min: c.floatOr("eta_min", 0)}, 0
	case "OneCycleLR":
		steps = c.intOr("total_steps", c.intOr("epochs", 0)*c.intOr("steps_per_epoch", 0))
		return optim.OneCycleLR{
			Max: c.floatOr("max_lr", math.NaN()), Steps: steps, RiseShare: c.float("pct_start"), Linear: strings.Trim(c.get("anneal_strategy"), `"'`) == "linear",
			KeepMomentum: !c.bool("cycle_momentum", true), BaseMomentum: c.float("base_momentum"), MaxMomentum: c.float("max_momentum"),
			Div: c.float("div_factor"), FinalDiv: c.float("final_div_factor"), ThreePhase: c.bool("three_phase", false),
		}, steps
	}
	require.FailNow(t, "no schedule", "%q", text)
	return nil, 0
}

// optimizerReference has the gradients of each step, and the parameters after it.
func optimizerReference(r *referenceRun) *autograd.Variable {
	ps := r.gradients()
	defer func() { require.NoError(r.t, ps.Release()) }()
	opt := optimizerOf(r.t, r.string("name", ""), ps)
	defer func() { require.NoError(r.t, opt.Close()) }()
	var want [][][]refNumber
	require.NoError(r.t, json.Unmarshal(r.Output[1], &want))
	for step, grads := range r.StepGrads {
		for i, p := range ps {
			require.NoError(r.t, p.ZeroGrad(r.b.Ctx))
			p.SetGrad(r.upload(grads[i], p.Value().Shape()...))
		}
		require.NoError(r.t, opt.Step(r.b.Ctx))
		for i, p := range ps {
			r.same(fmt.Sprintf("%s after step %d", p.Name, step+1), p.Value(), want[step][i])
		}
	}
	return nil
}

var positionalOfOptimizers = map[string][]string{
	"SGD": {"lr", "momentum", "dampening", "weight_decay", "nesterov"}, "Adam": {"lr", "betas", "eps", "weight_decay", "amsgrad"},
	"AdamW": {"lr", "betas", "eps", "weight_decay", "amsgrad"}, "RMSprop": {"lr", "alpha", "eps", "weight_decay", "momentum", "centered"},
	"Adagrad": {"lr", "lr_decay", "weight_decay", "initial_accumulator_value", "eps"},
}

func optimizerOf(t testing.TB, text string, ps autograd.Parameters) optim.Optimizer {
	t.Helper()
	c := parsePython(t, text, positionalOfOptimizers)
	defer c.done()
	opt, err := c.optimizer(ps)
	require.NoError(t, err, text)
	return opt
}

func (c *pyCall) optimizer(ps autograd.Parameters) (optim.Optimizer, error) {
	c.t.Helper()
	lr, eps, maximize := c.float("lr"), c.float("eps"), c.bool("maximize", false)
	switch c.name {
	case "SGD":
		return tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: lr, Momentum: c.floatOr("momentum", 0), Dampening: c.floatOr("dampening", 0),
			WeightDecay: c.floatOr("weight_decay", 0), Nesterov: c.bool("nesterov", false), Maximize: maximize}))
	case "Adam", "AdamW":
		cfg := optim.AdamConfig{LR: lr, Eps: eps, AMSGrad: c.bool("amsgrad", false), Maximize: maximize}
		if betas := c.floats("betas"); len(betas) == 2 {
			cfg.Beta1, cfg.Beta2 = &betas[0], &betas[1]
		}
		decoupled := c.bool("decoupled_weight_decay", false)
		if c.name == "AdamW" {
			cfg.WeightDecay = c.float("weight_decay")
			return tapetest.WithErr(optim.NewAdamW(ps, cfg))
		}
		cfg.WeightDecay = new(c.floatOr("weight_decay", 0))
		if decoupled {
			return tapetest.WithErr(optim.NewAdamW(ps, cfg))
		}
		return tapetest.WithErr(optim.NewAdam(ps, cfg))
	case "RMSprop":
		return tapetest.WithErr(optim.NewRMSprop(ps, optim.RMSpropConfig{LR: lr, Alpha: c.float("alpha"), Eps: eps, WeightDecay: c.floatOr("weight_decay", 0),
			Momentum: c.floatOr("momentum", 0), Centered: c.bool("centered", false), Maximize: maximize}))
	case "Adagrad":
		return tapetest.WithErr(optim.NewAdagrad(ps, optim.AdagradConfig{LR: lr, LRDecay: c.floatOr("lr_decay", 0), WeightDecay: c.floatOr("weight_decay", 0),
			InitialAccumulatorValue: c.floatOr("initial_accumulator_value", 0), Eps: eps, Maximize: maximize}))
	}
	require.FailNow(c.t, "no optimizer", "%q", c.name)
	return nil, nil
}
