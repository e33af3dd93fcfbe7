package autograd_test

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/internal/dev/cisterntest/tapetest"
	"github.com/cistern-ml/cistern/tensor"
)

// trainee is a parameter in training, and the same in plain float64.
type trainee struct {
	p     *autograd.Parameter
	opt   optim.Optimizer
	adam  bool
	w     []float64
	m, v  []float64
	steps int
}

const traineeLR = 0.01

func newTrainee(ctx context.Context, rt *tensor.Runtime, kind int) (*trainee, error) {
	tr := &trainee{w: []float64{1, -0.5, 0.25}, m: make([]float64, 3), v: make([]float64, 3), adam: kind%2 == 0}
	t, err := tensor.FromSlice(tensor.Detached(ctx), rt, tr.w)
	if err != nil {
		return nil, err
	}
	if tr.p, err = autograd.NewParameter(t); err != nil {
		return nil, err
	}
	ps := autograd.Parameters{{Name: "w", Parameter: tr.p}}
	if tr.adam {
		tr.opt, err = tapetest.WithErr(optim.NewAdamW(ps, optim.AdamConfig{LR: new(traineeLR), WeightDecay: new(0.1)}))
	} else {
		tr.opt, err = tapetest.WithErr(optim.NewSGD(ps, optim.SGDConfig{LR: new(traineeLR), Momentum: 0.9, WeightDecay: 0.1}))
	}
	return tr, err
}

// tensors returns the number of the trainee's tensors between steps.
func (tr *trainee) tensors() int {
	n := 1
	if tr.opt != nil {
		n += len(tr.opt.Core().State(0))
	}
	return n
}

// step takes a step of the loss c·Σw². A second tape also reads the parameter, and is stale
// afterwards. An error leaves the parameter unchanged.
func (tr *trainee) step(ctx context.Context, rt *tensor.Runtime, c float64) (err error) {
	defer func() { err = errors.Join(err, tr.opt.ZeroGrad(ctx)) }()
	stale, tape := autograd.NewTape(ctx, rt), autograd.NewTape(ctx, rt)
	defer stale.Close()
	defer tape.Close()
	square := func(t *autograd.Tape) *autograd.Variable {
		return t.MulScalar(t.Sum(t.Mul(t.Param(tr.p), t.Param(tr.p))), c)
	}
	late := square(stale)
	if _, err := tape.Backward(square(tape)); err != nil {
		return err
	}
	if err := tr.opt.Step(ctx); err != nil {
		return err
	}
	tr.follow(c)
	if stale.Err() == nil {
		switch _, err := stale.Backward(late); {
		case err == nil:
			return errors.New("a stale parameter has a gradient")
		case !errors.Is(err, autograd.ErrStale):
			return err
		}
	}
	return nil
}

// follow is the step in plain float64.
func (tr *trainee) follow(c float64) {
	tr.steps++
	for i, w := range tr.w {
		g := 2 * c * w
		if !tr.adam {
			g += 0.1 * w
			if tr.m[i] = 0.9*tr.m[i] + g; tr.steps == 1 {
				tr.m[i] = g
			}
			tr.w[i] -= traineeLR * tr.m[i]
			continue
		}
		w -= traineeLR * 0.1 * w
		tr.m[i], tr.v[i] = 0.9*tr.m[i]+0.1*g, 0.999*tr.v[i]+0.001*g*g
		m := tr.m[i] / (1 - math.Pow(0.9, float64(tr.steps)))
		v := tr.v[i] / (1 - math.Pow(0.999, float64(tr.steps)))
		tr.w[i] = w - traineeLR*m/(math.Sqrt(v)+1e-8)
	}
}

func (tr *trainee) check() error {
	got, err := tensor.ToSlice[float64](context.Background(), tr.p.Value(), nil)
	if err != nil {
		return err
	}
	for i, v := range tr.w {
		if !tapetest.Near(v, got[i], 1e-9) {
			return fmt.Errorf("the parameter is %v after %d steps, want %v", got, tr.steps, tr.w)
		}
	}
	return nil
}

func (tr *trainee) close() error { return errors.Join(tr.opt.Close(), tr.p.Release()) }
