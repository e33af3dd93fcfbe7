package autograd

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Optimizer updates the parameters of one runtime in place from their gradients. Its state is device memory. It is not safe for
// concurrent use.
type Optimizer interface {
	// Prepare allocates the state, so that the first step takes no more memory than the others. Otherwise Step allocates it for the
	// parameters that have a gradient. It is idempotent.
	Prepare(ctx context.Context) error
	// Step updates every parameter that has a gradient, but for those that are frozen. If there is no memory for the state nothing
	// is updated.
	Step(ctx context.Context) error
	// ZeroGrad frees the gradients (zero_grad(set_to_none=True)). The spans of the frees have their parent in ctx.
	ZeroGrad(ctx context.Context) error
	// LR is the learning rate of the first group, and SetLR changes that of all groups for the steps to come; see [Group.SetLR].
	LR() float64
	SetLR(lr float64) error
	// Close frees the state. The parameters stay. It is idempotent. A Step after it starts anew, as the first one.
	Close() error
}

// optimizerState is the state of an optimiser: for every parameter its number of steps and tensors of its shape.
type optimizerState struct {
	rt     *tensor.Runtime
	params Parameters         // of all groups
	number map[*Parameter]int // of each of them
	groups []*Group
	of     []int // the group of each parameter
	steps  []int
	filled []bool // a step has written the parameter's state
	state  [][]*tensor.Tensor
	kind   string // its name in PyTorch

	// slots are the tensors that a parameter of the g-th group may have, and how many of them, from the first one on, it has now. More
	// may be wanted later.
	slots func(g int) (all []slot, wanted int)

	offload  stateOffload
	pending  []int // of choose
	updated  int   // parameters, by the steps of a backward pass; see MinimizeInBackward
	backward inBackward
	unused   float64 // the learning rate of an optimiser that could not be made
}

// slot is a tensor of a parameter's state, with PyTorch's name and its first value.
type slot struct {
	name string
	fill float64
}

// LR returns the learning rate of the first group.
func (s *optimizerState) LR() float64 {
	if len(s.groups) == 0 {
		return s.unused
	}
	return s.groups[0].lr
}

// SetLR sets the learning rate of all groups, which is at least 0.
func (s *optimizerState) SetLR(lr float64) error {
	if err := checkLR(lr); err != nil {
		return err
	}
	if s.rt != nil {
		if c := s.rt.Capturing(); c != nil {
			return c.OnReplay(func() error { s.setLR(lr); return nil })
		}
	}
	s.setLR(lr)
	return nil
}

func (s *optimizerState) setLR(lr float64) {
	for _, g := range s.groups {
		g.lr = lr
	}
	s.unused = lr
}

func checkLR(lr float64) error { return within("SetLR", "the learning rate", lr, 0, math.MaxFloat64) }

// ZeroGrad frees the gradients.
func (s *optimizerState) ZeroGrad(ctx context.Context) error { return s.params.ZeroGrad(ctx) }

// Close frees the state.
func (s *optimizerState) Close() error {
	var errs []error
	for i, ts := range s.state {
		for _, t := range ts {
			errs = append(errs, t.Release())
		}
		s.state[i], s.steps[i], s.filled[i] = nil, 0, false
	}
	return errors.Join(errs...)
}

// Prepare allocates the state of all parameters that are not frozen.
func (s *optimizerState) Prepare(ctx context.Context) error {
	if err := checkContext("Prepare", ctx); err != nil {
		return err
	}
	return s.prepare(ctx, s.choose(nil, func(p *Parameter) bool { return !p.frozen }))
}

// choose returns the numbers of the parameters that are wanted, among some of them or, for nil, among all. The list is good until the next call.
func (s *optimizerState) choose(among []int, wanted func(*Parameter) bool) []int {
	s.pending = s.pending[:0]
	if among != nil {
		for _, i := range among {
			if wanted(s.params[i].Parameter) {
				s.pending = append(s.pending, i)
			}
		}
		return s.pending
	}
	for i, p := range s.params {
		if wanted(p.Parameter) {
			s.pending = append(s.pending, i)
		}
	}
	return s.pending
}

// prepare gives parameters their tensors.
func (s *optimizerState) prepare(ctx context.Context, params []int) error {
	for _, i := range params {
		p, had := s.params[i], len(s.state[i])
		slots, wanted := s.slots(s.of[i])
		if had >= wanted {
			continue
		}
		if c := s.rt.Capturing(); c != nil {
			return fmt.Errorf("autograd: state of parameter %q: %w", p.Name, c.Refuse(s.kind+" state", "it would begin anew at each replay: call Prepare, or take a step, before the capture"))
		}
		ctx := withLabel(tensor.Detached(ctx), memcache.CategoryOptimizerState, moduleName(p.Name)) // only now: most steps make nothing
		for _, slot := range slots[min(had, wanted):wanted] {
			t, err := slot.first(ctx, s.rt, p.Parameter)
			if err != nil {
				for _, t := range s.state[i][had:] {
					err = errors.Join(err, t.ReleaseContext(ctx))
				}
				s.state[i] = s.state[i][:had]
				return fmt.Errorf("autograd: state of parameter %q: %w", p.Name, err)
			}
			s.state[i] = append(s.state[i], t)
		}
		if err := s.park(ctx, []int{i}); err != nil {
			return fmt.Errorf("autograd: %w", err)
		}
	}
	return nil
}

// first is a tensor of the state of a parameter, before the first step.
func (s slot) first(ctx context.Context, rt *tensor.Runtime, p *Parameter) (*tensor.Tensor, error) {
	if s.fill == 0 {
		return rt.Zeros(ctx, p.value.Dtype(), p.stateShape()...)
	}
	return rt.Full(ctx, s.fill, p.value.Dtype(), p.stateShape()...)
}

// due returns the parameters among some of them, or all, that have a gradient and are not frozen, by number, and gives them their state.
func (s *optimizerState) due(ctx context.Context, among []int) ([]int, error) {
	due := s.choose(among, func(p *Parameter) bool { return p.hasGrad() && !p.frozen })
	return due, s.prepare(ctx, due)
}

// optional is the k-th tensor of the state of a parameter, or nil if it has fewer.
func (s *optimizerState) optional(i, k int) *tensor.Tensor {
	if k >= len(s.state[i]) {
		return nil
	}
	return s.state[i][k]
}

// stepAll runs a step of an optimiser. update returns the update of the i-th parameter, in its
// group's options and with its state. Those that are due among some parameters are updated, or of
// all for nil, and then the step counts. updates keeps its memory from step to step.
func stepAll[R tensor.Rule](ctx context.Context, s *optimizerState, among []int, updates *[]tensor.Update[R], update func(i int) tensor.Update[R]) (err error) {
	defer func() { s.abandonShards(err) }()
	if err := checkContext("Step", ctx); err != nil {
		return err
	}
	due, err := s.due(ctx, among)
	if err != nil || len(due) == 0 {
		return err
	}
	if err := stepDue(ctx, s, due, updates, update); err != nil {
		return err
	}
	if err := s.shareShards(due); err != nil {
		return fmt.Errorf("autograd: %s step: %w", s.kind, err)
	}
	return nil
}

// stepDue is stepAll for the parameters that are due.
func stepDue[R tensor.Rule](ctx context.Context, s *optimizerState, due []int, updates *[]tensor.Update[R], update func(i int) tensor.Update[R]) error {
	if s.offload.by != nil || s.parametersOffloaded(due) {
		return s.inPieces(ctx, due, func(piece []int) error { return stepPiece(ctx, s, piece, updates, update) })
	}
	if err := stepPiece(ctx, s, due, updates, update); err != nil {
		return fmt.Errorf("autograd: %s step: %w", s.kind, err)
	}
	return nil
}

// stepPiece is stepAll for some of the parameters that are due.
func stepPiece[R tensor.Rule](ctx context.Context, s *optimizerState, piece []int, updates *[]tensor.Update[R], update func(i int) tensor.Update[R]) error {
	*updates = (*updates)[:0]
	c := s.rt.Capturing()
	if c != nil {
		piece = slices.Clone(piece)
		s.guardReplays(c, piece)
	}
	defer s.closeShards(piece)
	for _, i := range piece {
		if some, err := s.params[i].openShard(ctx); err != nil {
			return err
		} else if some {
			*updates = append(*updates, update(i))
		}
	}
	defer clear(*updates) // the gradients are not the optimiser's to keep
	if err := tensor.Step(ctx, s.rt, *updates); err != nil {
		return err
	}
	if c != nil {
		return c.OnReplay(func() error { s.count(piece); return nil })
	}
	s.count(piece)
	s.updated += len(piece)
	return nil
}

// count counts a step of some parameters.
func (s *optimizerState) count(piece []int) {
	for _, i := range piece {
		s.steps[i]++
		_, wanted := s.slots(s.of[i])
		s.filled[i] = s.filled[i] || wanted > 0
	}
}

// valueOr is *p, or standard if p is nil.
func valueOr(p *float64, standard float64) float64 {
	if p == nil {
		return standard
	}
	return *p
}

func within(op, what string, v, lo, hi float64) error {
	if !(v >= lo && v <= hi) {
		return fmt.Errorf("autograd: %s: %w: %s is %v: want a number from %v to %v", op, ErrInvalid, what, v, lo, hi)
	}
	return nil
}

// String is such as "Adam of 4 parameters, learning rate 0.001".
func (s *optimizerState) String() string {
	return fmt.Sprintf("%s of %d parameters, learning rate %v", s.kind, len(s.params), s.LR())
}
