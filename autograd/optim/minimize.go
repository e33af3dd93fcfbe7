package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Minimize is one step of a training: Backward of the loss, the optimiser's Step, and its ZeroGrad.
// An error sticks to the tape; after one of Backward nothing is updated, and the optimiser's
// parameters have the gradients that Backward leaves.
//
// Other parameters that the loss is computed from, such as those of the critic in a generator's
// step, have the gradients afterwards that they had before, or none. What two optimisers update
// from one loss needs Backward, and Step and ZeroGrad of both. An optimiser that embeds another one
// may update parameters of both: Backward's gradients stay on all that its ZeroGrad does not clear.
// [InBackward] does not hold all gradients at once.
func Minimize(t *autograd.Tape, loss *autograd.Variable, opt Optimizer) {
	if check.Nil(opt) {
		t.Fail(fmt.Errorf("optim: Minimize: %w: the optimiser is nil", autograd.ErrInvalid))
	}
	if backwardFor(t, loss, opt) == nil {
		if err := errors.Join(opt.Step(t.Context()), opt.ZeroGrad(t.Context())); err != nil {
			t.Fail(err)
		}
	}
}

// backwardFor is Backward that leaves gradients on the optimiser's parameters only, and returns the
// tape's error.
func backwardFor(t *autograd.Tape, loss *autograd.Variable, opt Optimizer) (err error) {
	aside := setAside(t, opt)
	defer func() {
		for _, a := range aside {
			if err := a.putBack(t); err != nil {
				t.Fail(err)
			}
		}
		err = t.Err()
	}()
	_, err = t.Backward(loss)
	return err
}

// asideGradient is what a parameter had for a gradient before a backward pass that is not its own.
type asideGradient struct {
	of         *autograd.Parameter
	grad, part *tensor.Tensor
}

// setAside takes the gradients of the parameters that a backward pass may reach, and the optimiser
// does not update. Those of other ranks' passes are among them: all parameters of a [Shards] of
// which the tape has read one.
func setAside(t *autograd.Tape, opt Optimizer) (all []asideGradient) {
	s, err := CoreOf(opt)
	if err != nil || s.self != opt || t.Err() != nil { // one that embeds another may update more parameters
		return nil
	}
	var seen []Shards
	for v := range t.Parameters() {
		if !v.RequiresGrad() {
			continue
		}
		sh, ok := autograd.Attached[Sharded](v.Parameter())
		if !ok {
			all = s.takeAside(all, v.Parameter())
			continue
		}
		if of := sh.Shards(); !slices.Contains(seen, of) {
			seen = append(seen, of)
			for _, p := range of.Parameters() {
				all = s.takeAside(all, p)
			}
		}
	}
	return all
}

// takeAside takes the gradient of p, unless the optimiser updates it.
func (s *Base) takeAside(all []asideGradient, p *autograd.Parameter) []asideGradient {
	if _, steps := s.number[p]; steps {
		return all
	}
	a := asideGradient{of: p, grad: p.Grad()}
	p.SetGrad(nil)
	if sh, ok := autograd.Attached[Sharded](p); ok {
		a.part = sh.PartGrad()
		sh.SetPartGrad(nil)
	}
	return append(all, a)
}

// putBack frees the gradient of the pass, and gives the parameter the one that it had before.
func (a asideGradient) putBack(t *autograd.Tape) error {
	err := a.of.ZeroGrad(t.Context())
	a.of.SetGrad(a.grad)
	if sh, ok := autograd.Attached[Sharded](a.of); ok {
		sh.SetPartGrad(a.part)
	}
	return err
}
