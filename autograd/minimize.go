package autograd

import (
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// Minimize is one step of a training: Backward of the loss, the optimiser's Step, and its ZeroGrad.
// An error sticks to the tape; after one of Backward nothing is updated, and the optimiser's
// parameters have the gradients that Backward leaves.
//
// Other parameters that the loss is computed from, such as those of the critic in a generator's
// step, have the gradients afterwards that they had before, or none. What two optimisers update
// from one loss needs Backward, and Step and ZeroGrad of both. An optimiser that embeds another one
// may update parameters of both: Backward's gradients stay on all that its ZeroGrad does not clear. [Tape.MinimizeInBackward] does not hold all gradients at once.
func (t *Tape) Minimize(loss *Variable, opt Optimizer) {
	if isNil(opt) {
		t.fail("Minimize", fmt.Errorf("%w: the optimiser is nil", ErrInvalid))
	}
	if t.backwardFor(loss, opt) == nil {
		t.err = errors.Join(opt.Step(t.ctx), opt.ZeroGrad(t.ctx))
	}
}

// backwardFor is Backward that leaves gradients on the optimiser's parameters only, and returns the
// tape's error.
func (t *Tape) backwardFor(loss *Variable, opt Optimizer) (err error) {
	aside := t.setAside(opt)
	defer func() {
		for _, a := range aside {
			t.fail("Backward", a.putBack(t))
		}
		err = t.Err()
	}()
	_, err = t.Backward(loss)
	return err
}

// asideGradient is what a parameter had for a gradient before a backward pass that is not its own.
type asideGradient struct {
	of         *Parameter
	grad, part *tensor.Tensor
}

// setAside takes the gradients of the parameters that a backward pass may reach, and the optimiser
// does not update. Those of a Parallel whose other parameters are on the tape are among them,
// because the other ranks may have gradients of them.
func (t *Tape) setAside(opt Optimizer) (all []asideGradient) {
	s, err := coreOf(opt)
	if err != nil || s.self != opt || t.Err() != nil { // one that embeds another may update more parameters
		return nil
	}
	stepped := func(yes bool) {
		for _, p := range s.params {
			p.stepped = yes
		}
	}
	take := func(p *Parameter) {
		if p.stepped {
			return
		}
		a := asideGradient{of: p, grad: p.grad}
		p.grad = nil
		if sh, ok := Attached[Sharded](p); ok {
			a.part = sh.PartGrad()
			sh.SetPartGrad(nil)
		}
		p.stepped = true // until all are taken: it is taken once
		all = append(all, a)
	}
	stepped(true)
	for p, v := range t.params {
		if v.needsGrad {
			take(p)
		}
	}
	for _, h := range t.hooks {
		if h, ok := h.(*parallelHook); ok {
			for _, r := range h.of.replicas {
				take(r.Parameter)
			}
		}
	}
	stepped(false)
	for _, a := range all {
		a.of.stepped = false
	}
	return all
}

// putBack frees the gradient of the pass, and gives the parameter the one that it had before.
func (a asideGradient) putBack(t *Tape) error {
	err := a.of.ZeroGrad(t.ctx)
	a.of.grad = a.grad
	if sh, ok := Attached[Sharded](a.of); ok {
		sh.SetPartGrad(a.part)
	}
	return err
}
