package autograd_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
)

func init() {
	referenceOps["schedule_groups"] = scheduleGroupsReference
	referenceOps["plateau"] = plateauReference
}

// groups is an SGD with a group for each rate.
func (r *referenceRun) groups(rates []float64, momentum float64, f func(opt *optim.SGD)) {
	var ps autograd.Parameters
	for i := range rates {
		ps = append(ps, autograd.Named{Name: fmt.Sprint(i), Parameter: r.b.ParameterOf(r.upload(make([]refNumber, 1), 1))})
	}
	defer func() { require.NoError(r.t, ps.Release()) }()
	opt, err := tapetest.WithErr(optim.NewSGD(ps[:1], optim.SGDConfig{LR: &rates[0], Momentum: momentum}))
	require.NoError(r.t, err)
	defer opt.Close()
	for i := range rates[1:] {
		require.NoError(r.t, opt.AddGroup(ps[i+1:i+2], optim.SGDConfig{LR: &rates[i+1], Momentum: momentum}))
	}
	f(opt)
}

// scheduleGroupsReference has a schedule for each group, and the rates and the momenta of the steps.
func scheduleGroupsReference(r *referenceRun) *autograd.Variable {
	var schedules []optim.Schedule
	var rates []float64
	for _, name := range r.Args["names"].([]any) {
		schedules, rates = append(schedules, scheduleOf(r.t, name.(string))), append(rates, 0.1)
	}
	r.groups(rates, 0.5, func(opt *optim.SGD) {
		s, err := optim.NewScheduler(opt, schedules...)
		require.NoError(r.t, err)
		var got []float64
		want := r.output()
		for len(got) < len(want) {
			for _, g := range opt.Groups() {
				momentum, _ := g.Momentum()
				got = append(got, g.LR(), momentum)
			}
			require.NoError(r.t, s.Step())
		}
		requireClose(r.t, "rates and momenta", got, want, 1e-12)
	})
	return nil
}

// plateauReference has the metrics of the steps, and the groups' rates after each.
func plateauReference(r *referenceRun) *autograd.Variable {
	var rates []float64
	for _, lr := range r.Args["lr"].([]any) {
		rates = append(rates, lr.(float64))
	}
	c := parsePython(r.t, r.string("name", ""), nil)
	defer c.done()
	cfg := optim.PlateauConfig{Max: c.get("mode") == "max", Factor: c.float("factor"), Patience: c.int("patience"), Threshold: c.float("threshold"),
		Absolute: c.get("threshold_mode") == "abs", Cooldown: c.intOr("cooldown", 0), Eps: c.float("eps")}
	if strings.HasPrefix(c.get("min_lr"), "[") {
		cfg.MinLR = c.floats("min_lr")
	}
	r.groups(rates, 0, func(opt *optim.SGD) {
		s, err := optim.NewReduceLROnPlateau(opt, cfg)
		require.NoError(r.t, err)
		var got []float64
		for _, m := range r.Args["metrics"].([]any) {
			metric, ok := m.(float64)
			if !ok {
				metric, err = strconv.ParseFloat(m.(string), 64)
				require.NoError(r.t, err)
			}
			require.NoError(r.t, s.Step(metric))
			for _, g := range opt.Groups() {
				got = append(got, g.LR())
			}
		}
		requireClose(r.t, "the rates", got, r.output(), 1e-12)
		require.False(r.t, math.IsNaN(opt.LR()))
	})
	return nil
}
