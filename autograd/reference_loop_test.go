package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/metric"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

func init() {
	referenceOps["schedule_groups"] = scheduleGroupsReference
	referenceOps["plateau"] = plateauReference
	referenceOps["metrics"] = metricsReference
	referenceOps["average"] = averageReference
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

// scheduleGroupsReference has a schedule for each group, and the rates and the momenta of the
// steps.
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

// metricsReference has batches of logits and labels, and their accuracy, mean loss, perplexity and
// confusion matrix.
func metricsReference(r *referenceRun) *autograd.Variable {
	var ignore []int
	options := []tensor.LossOption{}
	if label, ok := r.Args["ignore"].(float64); ok {
		ignore, options = append(ignore, int(label)), append(options, tensor.IgnoreIndex(int(label)))
	}
	accuracy, loss := metric.NewMean(r.b.Ctx, r.b.RT, ignore...), metric.NewMean(r.b.Ctx, r.b.RT, ignore...)
	confusion := metric.NewConfusion(r.b.Ctx, r.b.RT, r.int("classes", 0), ignore...)
	defer func() { require.NoError(r.t, errors.Join(accuracy.Close(), loss.Close(), confusion.Close())) }()
	for i := range len(r.Inputs) / 2 {
		logits, labels := r.in(fmt.Sprint("logits", i)).Keep(), r.in(fmt.Sprint("labels", i))
		accuracy.AddHits(r.tape, logits, labels.Value())
		confusion.Add(r.tape, logits, labels.Value())
		loss.Add(r.tape, r.tape.CrossEntropy(logits, labels.Value(), options...), labels.Value())
	}
	require.NoError(r.t, r.tape.Err())
	var got []float64
	for _, value := range []func(context.Context) (float64, error){accuracy.Value, loss.Value, loss.Perplexity} {
		v, err := value(r.b.Ctx)
		require.NoError(r.t, err)
		got = append(got, v)
	}
	matrix, err := confusion.Value(r.b.Ctx)
	require.NoError(r.t, err)
	for _, row := range matrix {
		for _, n := range row {
			got = append(got, float64(n))
		}
	}
	r.close("the metrics", got, r.output())
	return nil
}

// averageReference has a parameter and a buffer after each step, and their averages.
func averageReference(r *referenceRun) *autograd.Variable {
	shapes := r.Args["shapes"].([]any)
	load := func(step, i int) *tensor.Tensor {
		var shape []int
		for _, n := range shapes[i].([]any) {
			shape = append(shape, int(n.(float64)))
		}
		return r.upload(r.StepGrads[step][i], shape...)
	}
	model := &struct {
		P *autograd.Parameter
		B *tensor.Tensor `buffer:"b"`
	}{r.b.ParameterOf(load(0, 0)), load(0, 1)}
	ema := nn.NewStateCopy(r.b.Ctx, model)
	require.NoError(r.t, ema.Err())
	defer func() { require.NoError(r.t, errors.Join(ema.Close(), model.P.Release(), model.B.Release())) }()
	for step := range r.StepGrads[1:] {
		for i, to := range []*tensor.Tensor{model.P.Value(), model.B} {
			x := load(step+1, i)
			require.NoError(r.t, errors.Join(r.b.RT.CopyInPlace(r.b.Ctx, to, x), x.Release()))
		}
		require.NoError(r.t, ema.Average(r.b.Ctx, r.float("decay", 0)))
	}
	want := r.output()
	n := model.P.Value().Elements()
	r.same("the parameter", ema.Buffers()[0].Tensor, want[:n])
	r.same("the buffer", ema.Buffers()[1].Tensor, want[n:])
	return nil
}
