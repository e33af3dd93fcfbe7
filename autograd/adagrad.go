package autograd

import (
	"context"
	"errors"
	"math"

	"github.com/cistern-ml/cistern/tensor"
)

// AdagradConfig are the options of torch.optim.Adagrad.
type AdagradConfig struct {
	LR          *float64 // nil: 0.01
	LRDecay     float64
	WeightDecay float64
	// InitialAccumulatorValue is what the sums of squares begin with.
	InitialAccumulatorValue float64
	Eps                     *float64 // nil: 1e-10
	Maximize                bool     // steps go up the gradient
}

// Adagrad is torch.optim.Adagrad. It keeps one tensor a parameter.
type Adagrad struct {
	optimizerState
	base    []tensor.Adagrad // of each group, without its number and learning rate
	sums    [][]slot         // of each group
	updates []tensor.Update[tensor.Adagrad]
}

// NewAdagrad makes an optimiser of the parameters.
func NewAdagrad(params Parameters, cfg AdagradConfig) (*Adagrad, error) {
	o := &Adagrad{}
	o.kind = "Adagrad"
	o.slots = func(g int) ([]slot, int) { return o.sums[g], 1 }
	if err := o.add("NewAdagrad", params, cfg); err != nil {
		return nil, err
	}
	return o, nil
}

// AddGroup adds parameters with options of their own (torch.optim.Optimizer.add_param_group). What cfg leaves out is PyTorch's default,
// not the first group's. After an error the optimiser is as it was.
func (o *Adagrad) AddGroup(params Parameters, cfg AdagradConfig) error {
	return o.add("AddGroup", params, cfg)
}

func (o *Adagrad) add(op string, params Parameters, cfg AdagradConfig) error {
	base := tensor.Adagrad{LRDecay: cfg.LRDecay, WeightDecay: cfg.WeightDecay, Eps: valueOr(cfg.Eps, 1e-10), Maximize: cfg.Maximize}
	if err := errors.Join(
		within(op, "LRDecay", base.LRDecay, 0, math.MaxFloat64),
		within(op, "WeightDecay", base.WeightDecay, 0, math.MaxFloat64),
		within(op, "InitialAccumulatorValue", cfg.InitialAccumulatorValue, 0, math.MaxFloat64),
		within(op, "Eps", base.Eps, 0, math.MaxFloat64)); err != nil {
		return err
	}
	if err := o.addGroup(op, params, Group{lr: valueOr(cfg.LR, 1e-2)}); err != nil {
		return err
	}
	o.base, o.sums = append(o.base, base), append(o.sums, []slot{{"sum", cfg.InitialAccumulatorValue}})
	return nil
}

// Step updates every parameter that has a gradient and is not frozen.
func (o *Adagrad) Step(ctx context.Context) error { return o.stepAmong(ctx, nil) }

// stepAmong is Step for those of the parameters that are named by number; nil: for all.
func (o *Adagrad) stepAmong(ctx context.Context, among []int) error {
	return stepAll(ctx, &o.optimizerState, among, &o.updates, func(i int) tensor.Update[tensor.Adagrad] {
		p, g := o.params[i].operands()
		u := tensor.Update[tensor.Adagrad]{Rule: o.next(i), P: p, G: g, State: [3]*tensor.Tensor{o.state[i][0]}}
		if o.rt.Capturing() != nil {
			u.Next = func() tensor.Adagrad { return o.next(i) }
		}
		return u
	})
}

// next is the next step of the i-th parameter.
func (o *Adagrad) next(i int) tensor.Adagrad {
	g, step := o.groups[o.of[i]], o.base[o.of[i]]
	step.LR, step.Step = g.lr, o.steps[i]+1
	return step
}
