package optim

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Optimizer updates parameters of one runtime in place from their gradients. A type implements it
// by embedding [Base]. It is not safe for concurrent use.
type Optimizer interface {
	// Prepare allocates the state of all parameters, so that the first step needs no more memory
	// than later ones. It is idempotent.
	Prepare(ctx context.Context) error
	// Step updates every parameter that has a gradient and is not frozen. If there is no memory for
	// the state, it updates none.
	Step(ctx context.Context) error
	// ZeroGrad frees the gradients (zero_grad(set_to_none=True)). ctx is the parent of the spans of
	// the frees.
	ZeroGrad(ctx context.Context) error
	// LR returns the learning rate of the first group, and SetLR changes that of all groups for the
	// steps to come; see [Group.SetLR].
	LR() float64
	SetLR(lr float64) error
	// Close frees the state but not the parameters. It is idempotent. A later Step begins with new
	// state.
	Close() error
	// Core returns the optimiser's Base, which schedules, checkpoints, sharding and offload use.
	Core() *Base
}

// Base is the common part of all optimisers: groups of parameters, their state, and steps in
// pieces. An optimiser embeds it, calls Init and AddGroup, and computes updates:
//
//	type Lion struct{ optim.Base }
//
//	func NewLion(ps autograd.Parameters, lr float64) *Lion {
//		o := new(Lion)
//		o.Init(o, "Lion", o.update)
//		o.Fail(o.AddGroup(ps, optim.Options{LR: lr, State: []optim.Slot{{Name: "exp_avg"}}}))
//		return o
//	}
//
// Such an optimiser supports schedules, groups, checkpoints, a sharded parallel.Parallel, offload,
// captures, and steps in the backward pass.
type Base struct {
	err    error
	self   Optimizer
	kind   string // name in errors and checkpoints; PyTorch's
	update func(context.Context, []Update) error

	rt     *tensor.Runtime
	params autograd.Parameters         // of all groups
	number map[*autograd.Parameter]int // index in params
	groups []*Group
	of     []int // the index of each parameter's group
	steps  []int
	filled []bool // a step has written the parameter's state
	state  [][]*tensor.Tensor

	stage   Stage                 // of the state; nil: it stays on the device
	piece   int64                 // bytes of state and offloaded parameters in a piece
	pending []int                 // result of choose
	shared  []*autograd.Parameter // scratch of endShards
	updates []Update
	rows    any     // *[]tensor.Update[R], scratch of StepRule
	live    bool    // each replay of the captured update recomputes its numbers
	updated int     // number of parameters updated in a backward pass; see InBackward
	pass    any     // *inBackward, kept for reuse
	unused  float64 // the learning rate of an optimiser without groups
}

// Init sets the optimiser self, which embeds the Base, its name kind in errors and checkpoints, and
// its function update. update gets the parameters of a step that have a gradient, or a piece of
// them, and queues their updates on the parameters' runtime. The tensors in us belong to the Base.
// [StepRule] implements update with a rule of package tensor.
func (s *Base) Init(self Optimizer, kind string, update func(ctx context.Context, us []Update) error) {
	if check.Nil(self) || update == nil {
		s.Fail(fmt.Errorf("optim: %s: %w: the optimiser or its update is nil", kind, autograd.ErrInvalid))
	}
	s.self, s.kind, s.update = self, kind, update
}

// Fail sets the error that Err, Prepare and Step return, unless err is nil or an error is already
// set.
func (s *Base) Fail(err error) {
	if s.err == nil {
		s.err = err
	}
}

// Err returns the first error of the optimiser's construction, or nil.
func (s *Base) Err() error { return s.err }

// Core returns s.
func (s *Base) Core() *Base { return s }

// CoreOf returns the Base of an optimiser, or an error if opt is nil, was not initialised, or
// failed in its construction.
func CoreOf(opt Optimizer) (*Base, error) {
	if check.Nil(opt) {
		return nil, fmt.Errorf("%w: the optimiser is nil", autograd.ErrInvalid)
	}
	s := opt.Core()
	return s, s.usable()
}

// usable returns Err, or an error if Init was not called.
func (s *Base) usable() error {
	if s.err == nil && s.update == nil {
		return fmt.Errorf("optim: %w: the optimiser was not made: call its constructor, which calls Base.Init", autograd.ErrInvalid)
	}
	return s.err
}

// Runtime returns the parameters' runtime, or nil if there are none.
func (s *Base) Runtime() *tensor.Runtime { return s.rt }

// Parameters returns the parameters of all groups.
func (s *Base) Parameters() autograd.Parameters { return s.params }

// LR returns the learning rate of the first group.
func (s *Base) LR() float64 {
	if len(s.groups) == 0 {
		return s.unused
	}
	return s.groups[0].lr
}

// SetLR sets the learning rate of all groups. It must be at least 0.
func (s *Base) SetLR(lr float64) error {
	if err := checkLR(lr); err != nil {
		return err
	}
	return atReplays(s.rt, func() {
		for _, g := range s.groups {
			g.lr = lr
		}
		s.unused = lr
	})
}

func checkLR(lr float64) error {
	return within("SetLR", "the learning rate", lr, 0, math.MaxFloat64)
}

// atReplays calls set now, or in a capture at each replay.
func atReplays(rt *tensor.Runtime, set func()) error {
	if c := rt.Capturing(); c != nil {
		return c.OnReplay(func() error { set(); return nil })
	}
	set()
	return nil
}

// ZeroGrad frees the gradients.
func (s *Base) ZeroGrad(ctx context.Context) error { return s.params.ZeroGrad(ctx) }

// Close frees the state.
func (s *Base) Close() error {
	var errs []error
	for i, ts := range s.state {
		for _, t := range ts {
			errs = append(errs, t.Release())
		}
		s.state[i], s.steps[i], s.filled[i] = nil, 0, false
	}
	return errors.Join(errs...)
}

// String returns a text such as "Adam of 4 parameters, learning rate 0.001".
func (s *Base) String() string {
	return fmt.Sprintf("%s of %d parameters, learning rate %v", s.kind, len(s.params), s.LR())
}

// within returns an error of the call op if v is not from lo to hi, or NaN.
func within(op, what string, v, lo, hi float64) error {
	if !(v >= lo && v <= hi) {
		return fmt.Errorf("optim: %s: %w: %s is %v: want a number from %v to %v", op, autograd.ErrInvalid, what, v, lo, hi)
	}
	return nil
}
