package optim

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Minimize makes one training step: Backward of the loss, the optimiser's Step, and its ZeroGrad.
// An error sticks to the tape. After an error of Backward nothing is updated, and the optimiser's
// parameters have the gradients that Backward leaves.
//
// Other parameters that the loss depends on, such as those of the critic in a generator's step,
// keep the gradients that they had before, or none. To update parameters of two optimisers from one
// loss, call Backward, and then Step and ZeroGrad of both. An optimiser that embeds another one may
// update parameters of both, so all gradients of Backward stay that its ZeroGrad does not free.
// [InBackward] avoids holding all gradients at once.
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

// asideGradient is the gradient that a parameter had before a backward pass for another optimiser.
type asideGradient struct {
	of         *autograd.Parameter
	grad, part *tensor.Tensor
}

// setAside takes the gradients from the parameters that a backward pass may reach and that the
// optimiser does not update. If the tape has read one parameter of a [Shards], these include all of
// its parameters, because other ranks' passes may reach them.
func setAside(t *autograd.Tape, opt Optimizer) (all []asideGradient) {
	s, err := CoreOf(opt)
	if err != nil || s.self != opt || t.Err() != nil { // opt may update others too
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

// takeAside takes the gradient from p, unless the optimiser updates p.
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

// putBack frees the gradient of the pass, and restores the one that the parameter had before.
func (a asideGradient) putBack(t *autograd.Tape) error {
	err := a.of.ZeroGrad(t.Context())
	a.of.SetGrad(a.grad)
	if sh, ok := autograd.Attached[Sharded](a.of); ok {
		sh.SetPartGrad(a.part)
	}
	return err
}
