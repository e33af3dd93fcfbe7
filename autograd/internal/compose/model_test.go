package compose

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/offload"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/autograd/remat"
	"github.com/cistern-ml/cistern/tensor"
)

// model has the layers and data of a random program.
type model struct {
	Layers map[string]nn.Layer // of the program's steps
	Head   *nn.Linear

	*trial
	offloader       *tensor.Offloader
	constant, index *tensor.Tensor
}

func newModel(in *nn.Initializer, tr *trial) *model {
	m := &model{Layers: make(map[string]nn.Layer), Head: in.Linear(tr.width, tr.width), trial: tr}
	tr.root.each(func(s step) bool {
		if op := operations[s.op]; s.inner == nil && op.layer != nil && m.Layers[s.layer()] == nil {
			m.Layers[s.layer()] = op.layer(in, tr.width)
		}
		return true
	})
	return m
}

// layer is the name of a step's layer.
func (s step) layer() string { return fmt.Sprint(operations[s.op].kind, s.w) }

func (m *model) apply(t *autograd.Tape, s step, a, b *autograd.Variable) *autograd.Variable {
	l := m.Layers[s.layer()]
	if f := operations[s.op].apply; f != nil {
		return f(m, t, l, a, b)
	}
	if _, ok := l.(nn.Sequential); ok && !m.has(sequential) {
		return layerwise(t, l, a)
	}
	switch kind := (m.seed + uint64(s.id)) % 3; {
	case kind == 0 && m.has(checkpoints):
		l = remat.Layer(l)
	case kind == 1 && m.has(offloadActivations):
		l = offload.Layer(l, m.offloader)
	}
	return l.Forward(t, a)
}

// layerwise runs the layers of a Sequential, but does not release the values between them.
func layerwise(t *autograd.Tape, l nn.Layer, x *autograd.Variable) *autograd.Variable {
	s, ok := l.(nn.Sequential)
	if !ok {
		return l.Forward(t, x)
	}
	for _, l := range s {
		x = layerwise(t, l, x)
	}
	return x
}

// apart computes a part of the program with the features that surround one.
func (m *model) apart(t *autograd.Tape, p *part, vs []*autograd.Variable) *autograd.Variable {
	f := func() *autograd.Variable { return p.run(m, t, vs) }
	r := rand.New(rand.NewPCG(m.seed, uint64(p.id)))
	for range 2 {
		inner := f
		switch kind := r.IntN(4); {
		case kind == 0 && m.has(frames):
			f = func() *autograd.Variable { return t.Frame(inner) }
		case kind == 1 && m.has(checkpoints):
			f = func() *autograd.Variable { return remat.Checkpoint(t, inner) }
		case kind == 2 && m.has(offloadActivations):
			f = func() *autograd.Variable { return offload.Activations(t, m.offloader, inner) }
		case kind == 3 && m.has(modules):
			f = func() *autograd.Variable { return t.Module("part", inner) }
		}
	}
	return f()
}

// rowsOf are the rows of x that the n-th pass of a step reads.
func (m *model) rowsOf(t *autograd.Tape, x *autograd.Variable, n int) *autograd.Variable {
	if !m.has(accumulate) {
		return x
	}
	return t.Narrow(x, 0, n*m.rows, m.rows)
}

// loss returns the loss that the training minimises, and the result that it is computed from.
func (m *model) loss(t *autograd.Tape, x *autograd.Variable) (loss, result *autograd.Variable) {
	y := m.apart(t, m.root, []*autograd.Variable{x})
	loss = t.Mean(t.Square(m.Head.Forward(t, y)))
	if m.has(penalty) {
		for _, p := range nn.ParametersOf(m) {
			loss = t.Add(loss, t.MulScalar(t.Mean(t.Square(t.Param(p.Parameter))), 0.01))
		}
	}
	if m.has(accumulate) {
		loss = t.MulScalar(loss, 0.5)
	}
	return loss, y
}

// lion is an optimiser of a program's own, whose groups have their own beta1.
type lion struct{ optim.Base }

var lionSlots = []optim.Slot{{Name: "exp_avg", Fill: 0.01}}

func newLion(ps autograd.Parameters, cfg optim.Options) *lion {
	o := new(lion)
	o.Init(o, "Lion", func(ctx context.Context, us []optim.Update) error {
		return optim.StepRule(ctx, us, func(u *optim.Update) (tensor.Lion, [3]*tensor.Tensor) {
			return tensor.Lion{LR: u.LR, Beta1: u.Group.Own().(float64), Beta2: 0.99}, [3]*tensor.Tensor{u.State[0]}
		})
	})
	cfg.State = lionSlots
	o.Fail(o.AddGroup(ps, cfg))
	return o
}

// newOptimizer makes an optimiser of the trial's kind, of one or two groups.
func (m *model) newOptimizer(in *nn.Initializer) (opt optim.Optimizer, err error) {
	first, second := nn.ParametersOf(m), autograd.Parameters(nil)
	if m.has(groups) {
		half := len(first) / 2
		first, second = first[:half], first[half:]
	}
	switch m.optimizer {
	case 0:
		o := nn.Own(in, optim.NewSGD(first, optim.SGDConfig{LR: new(0.1)}))
		if second != nil {
			err = o.AddGroup(second, optim.SGDConfig{LR: new(0.05), Momentum: 0.5})
		}
		return o, err
	case 1:
		o := nn.Own(in, optim.NewSGD(first, optim.SGDConfig{LR: new(0.1), Momentum: 0.9, Dampening: 0.2, WeightDecay: 0.1}))
		if second != nil {
			err = o.AddGroup(second, optim.SGDConfig{LR: new(0.05), Momentum: 0.5, Nesterov: true})
		}
		return o, err
	case 2:
		o := nn.Own(in, optim.NewAdam(first, optim.AdamConfig{LR: new(0.01), AMSGrad: true}))
		if second != nil {
			err = o.AddGroup(second, optim.AdamConfig{LR: new(0.02), WeightDecay: new(0.1)})
		}
		return o, err
	case 3:
		o := nn.Own(in, optim.NewAdamW(first, optim.AdamConfig{LR: new(0.01)}))
		if second != nil {
			err = o.AddGroup(second, optim.AdamConfig{LR: new(0.02), Maximize: true})
		}
		return o, err
	case 4:
		o := nn.Own(in, optim.NewRMSprop(first, optim.RMSpropConfig{Centered: true}))
		if second != nil {
			err = o.AddGroup(second, optim.RMSpropConfig{Momentum: 0.5})
		}
		return o, err
	case 5:
		o := nn.Own(in, newLion(first, optim.Options{LR: 0.01, Own: 0.9}))
		if second != nil {
			err = o.AddGroup(second, optim.Options{LR: 0.02, Own: 0.5, State: lionSlots})
		}
		return o, err
	}
	o := nn.Own(in, optim.NewAdagrad(first, optim.AdagradConfig{LRDecay: 0.1}))
	if second != nil {
		err = o.AddGroup(second, optim.AdagradConfig{InitialAccumulatorValue: 0.1})
	}
	return o, err
}
