package tensor

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/upcast"
)

// stepper is a rule that sets the numbers of its kernel.Rule.
type stepper interface {
	name() string // in errors
	op() backend.Op
	check() error
	// momentum returns the momentum and the index of its buffer in the state, or 0 and -1. If the
	// momentum is 0, the buffer is left alone and may be nil.
	momentum() (momentum float64, buffer int)
	shared(*plan.Numbers)
	own(first *float64)
}

// update is one parameter's step. state has the tensors of the rule in order, with nil for absent
// ones.
type update struct {
	step  stepper
	p, g  *Tensor
	state [3]*Tensor
	next  func() (stepper, error) // the step of each replay, in a capture; nil: it is the same
}

// steps is where the updates of many parameters are checked and queued. It is reused by later
// steps, so that a step makes no garbage.
type steps struct {
	update  update
	shared  []plan.Numbers
	list    backend.List
	calls   []*backend.Call
	nexts   []func() (stepper, error)
	written []*Tensor
	held    stepOperands
	room    [5]*Tensor // of one update, while it is checked
}

var stepsPool sync.Pool

// takeSteps returns steps from the pool. In race builds they are always new, because the pool would
// order the goroutines that step.
func takeSteps() *steps {
	if s, ok := stepsPool.Get().(*steps); ok {
		return s
	}
	return &steps{list: backend.List{Stride: 5}}
}

// give releases the operands, and returns the steps to the pool.
func (s *steps) give() {
	s.held.release()
	clear(s.list.Refs)
	clear(s.written)
	clear(s.held)
	clear(s.room[:])
	clear(s.calls)
	s.update, s.shared, s.calls, s.nexts, s.written, s.held = update{}, s.shared[:0], s.calls[:0], nil, s.written[:0], s.held[:0]
	s.list = backend.List{Refs: s.list.Refs[:0], Stride: s.list.Stride, Own: s.list.Own[:0]}
	if !race.Enabled {
		stepsPool.Put(s)
	}
}

// step queues the updates of n parameters, each of which set describes. If one is refused, none is
// queued.
func (rt *Runtime) step(ctx context.Context, op backend.Op, name string, n int, set func(i int, u *update) error) error {
	s := takeSteps()
	defer s.give()
	rule := &kernel.Rules[op.Code()]
	s.list.Width = rule.Width()
	for i := range n {
		s.update = update{}
		if err := set(i, &s.update); err != nil {
			return fmt.Errorf("tensor: %s: %w", name, err)
		}
		if err := s.add(rt, rule, name, i); err != nil {
			return err
		}
	}
	if s.nexts != nil {
		live, err := s.live(ctx, rt.capturing.Load())
		if err != nil {
			return err
		}
		s.list.Live = live
	}
	overwritten(s.written...)
	return s.queue(ctx, rt, op)
}

// add checks and holds the tensors of the update, and stores its numbers.
func (s *steps) add(rt *Runtime, rule *kernel.Rule, name string, i int) error {
	u, width := &s.update, s.list.Width
	needed := append(append(s.room[:0], u.p, u.g), u.state[:rule.Needs]...)
	if err := s.held.acquire(rt, name, present(needed, u.state[rule.Needs:]...)...); err != nil {
		return err
	}
	s.list.Refs, s.written = append(s.list.Refs, u.p.ref(), u.g.ref()), append(s.written, u.p)
	for _, t := range u.state {
		s.list.Refs, s.written = append(s.list.Refs, t.ref()), append(s.written, t)
	}
	s.shared = append(s.shared, plan.Numbers{})
	u.step.shared(&s.shared[i])
	s.list.Own = slices.Grow(s.list.Own, width)[:(i+1)*width]
	u.step.own(&s.list.Own[i*width])
	if u.next != nil {
		s.nexts = append(s.nexts, make([]func() (stepper, error), i+1-len(s.nexts))...)
		s.nexts[i] = u.next
	}
	return nil
}

// queue queues the updates. Each call has neighbours with the same shared numbers and dtypes.
func (s *steps) queue(ctx context.Context, rt *Runtime, op backend.Op) error {
	for i := 0; i < len(s.shared); {
		first, j := s.list.Item(i), i+1
		for j < len(s.shared) && s.shared[j] == s.shared[i] && s.list.Item(j)[0].Dtype == first[0].Dtype && s.list.Item(j)[1].Dtype == first[1].Dtype {
			j++
		}
		c := rt.calls.New(op, first[0].Dtype)
		backend.SetParams(c, s.shared[i])
		c.SetList(s.list.Slice(i, j))
		if rt.onOperation != nil {
			noteItem(c, s.written[i*(1+len(s.update.state))], c.List.Stride)
		}
		s.calls = append(s.calls, c)
		i = j
	}
	return upcast.DoLists(ctx, rt.backend, s.calls)
}

// live returns the updates' own numbers in device memory, which are set before each replay.
func (s *steps) live(ctx context.Context, c *Capture) (backend.Ref, error) {
	width, nexts, same := s.list.Width, s.nexts, slices.Clone(s.list.Own)
	numbers, err := Scalars(ctx, c, len(same), func(to []float64) error {
		copy(to, same)
		for i, next := range nexts {
			if next == nil {
				continue
			}
			step, err := next()
			if err != nil {
				return err
			}
			step.own(&to[i*width])
		}
		return nil
	})
	if err != nil {
		return backend.Ref{}, err
	}
	return numbers.ref(), nil
}

// sameBuffer returns an error if a replay's momentum is 0 and the captured one is not, or the
// reverse.
func sameBuffer(step string, momentum float64, buffered bool) error {
	if (momentum != 0) != buffered {
		return fmt.Errorf("tensor: %s: %w: momentum %v: a captured step can't gain or lose its momentum: capture it again", step, ErrInvalid, momentum)
	}
	return nil
}

// checkStepNumber returns an error unless the steps are counted from 1.
func checkStepNumber(step int) error {
	if step < 1 {
		return fmt.Errorf("%w: step %d: want at least 1", ErrInvalid, step)
	}
	return nil
}

// sign returns the factor of the gradients.
func sign(maximize bool) float64 {
	if maximize {
		return -1
	}
	return 1
}

func asNumber(v bool) float64 {
	if v {
		return 1
	}
	return 0
}

// overwritten counts a write in place to each of the tensors that are not nil.
func overwritten(ts ...*Tensor) {
	for _, t := range ts {
		if t != nil {
			t.overwritten()
		}
	}
}

// stepOperands are the operands of many updates, held until one launch is queued for all.
type stepOperands []operands

func (all *stepOperands) release() {
	for i := range *all {
		(*all)[i].release()
	}
}

func (all *stepOperands) acquire(rt *Runtime, op string, ts ...*Tensor) error {
	in, err := rt.acquire(op, ts...)
	if err == nil {
		in, err = in.unless(checkStep(op, ts))
	}
	if err == nil {
		*all = append(*all, in)
	}
	return err
}

// checkStep returns an error if the tensors differ in shape or dtype, except for a gradient of 16
// bits of a float32 parameter, or if two of them overlap in memory.
func checkStep(op string, ts []*Tensor) error {
	alike := ts
	if len(ts) > 1 && ts[1].dtype.Wide() == ts[0].dtype { // a gradient
		alike = append(ts[:1:1], ts[2:]...)
	}
	if err := wantFloats(op, alike...); err != nil {
		return err
	}
	for i, t := range ts {
		for _, u := range ts[:i] {
			if err := sameShape(op, u, t); err != nil {
				return err
			}
			if u.shares(t) {
				return overlapError(op)
			}
		}
	}
	return nil
}
