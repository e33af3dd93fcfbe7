package tensor

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/tensor/internal/backend"
)

// steps is where the updates of many parameters are checked and queued: P are the numbers that parameters share. It is kept from step
// to step, so that a step makes no garbage.
type steps[P comparable] struct {
	shared  []P
	stride  int
	refs    []backend.Ref
	width   int
	own     []float64                        // width numbers for each parameter
	nexts   map[int]func(to []float64) error // of a captured step: sets the own numbers for a replay
	written []*Tensor
	held    stepOperands
	room    [5]*Tensor // of one update, while it is checked
}

var sgdSteps, adamSteps, rmspropSteps, adagradSteps sync.Pool

// takeSteps takes steps from those of their kind. In race builds they are new: the pool's edges would order the goroutines that step.
func takeSteps[P comparable](pool *sync.Pool) *steps[P] {
	if s, ok := pool.Get().(*steps[P]); ok {
		return s
	}
	return new(steps[P])
}

// give lets go of the operands, and gives the steps back.
func (s *steps[P]) give(pool *sync.Pool) {
	s.held.release()
	clear(s.refs)
	clear(s.written)
	clear(s.held)
	clear(s.room[:])
	s.shared, s.refs, s.own, s.written, s.held, s.nexts = s.shared[:0], s.refs[:0], s.own[:0], s.written[:0], s.held[:0], nil
	if !race.Enabled {
		pool.Put(s)
	}
}

// add checks and holds the tensors of an update: the parameter, its gradient, and its state, which may be nil.
func (s *steps[P]) add(rt *Runtime, op string, shared P, p, g *Tensor, state ...*Tensor) error {
	if err := s.held.acquire(rt, op, present(append(s.room[:0], p, g), state...)...); err != nil {
		return err
	}
	s.shared, s.stride = append(s.shared, shared), 2+len(state)
	s.refs, s.written = append(s.refs, p.ref(), g.ref()), append(s.written, p)
	for _, t := range state {
		s.refs, s.written = append(s.refs, t.ref()), append(s.written, t)
	}
	return nil
}

// row is room for the own numbers of the last update.
func (s *steps[P]) row(width int) []float64 {
	s.width = width
	n := len(s.own)
	s.own = slices.Grow(s.own, width)[:n+width]
	return s.own[n:]
}

// next says that the numbers of the i-th update change from replay to replay.
func (s *steps[P]) next(i int, set func(to []float64) error) {
	if s.nexts == nil {
		s.nexts = map[int]func(to []float64) error{}
	}
	s.nexts[i] = set
}

// queue queues the updates: each call has those that share their numbers and dtypes.
func (s *steps[P]) queue(ctx context.Context, rt *Runtime, op backend.Op) error {
	all := backend.List{Refs: s.refs, Stride: s.stride, Own: s.own, Width: s.width}
	if s.nexts != nil {
		live, err := s.live(ctx, rt.capturing.Load())
		if err != nil {
			return err
		}
		all.Live = live
	}
	overwritten(s.written...)
	for i := 0; i < len(s.shared); {
		j := i + 1
		for j < len(s.shared) && s.shared[j] == s.shared[i] && alikeRefs(all.Item(i), all.Item(j)) {
			j++
		}
		c := rt.calls.New(op, all.Item(i)[0].Dtype)
		backend.SetParams(c, s.shared[i])
		c.SetList(all.Slice(i, j))
		if err := rt.backend.Do(ctx, c); err != nil {
			return err
		}
		i = j
	}
	return nil
}

// alikeRefs reports whether two updates have parameters of one dtype, and gradients of one.
func alikeRefs(a, b []backend.Ref) bool { return a[0].Dtype == b[0].Dtype && a[1].Dtype == b[1].Dtype }

// live is the updates' numbers in device memory, which are set before each replay.
func (s *steps[P]) live(ctx context.Context, c *Capture) (backend.Ref, error) {
	width, nexts, same := s.width, s.nexts, slices.Clone(s.own)
	numbers, err := Scalars(ctx, c, len(same), func(to []float64) error {
		copy(to, same)
		for i, set := range nexts {
			if err := set(to[i*width:][:width]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return backend.Ref{}, err
	}
	return numbers.ref(), nil
}

// sameBuffer is an error for a momentum that is 0, or is not, other than in the capture.
func sameBuffer(optimizer string, momentum float64, buffered bool) error {
	if (momentum != 0) != buffered {
		return fmt.Errorf("tensor: Step%s: %w: momentum %v: a step with momentum is not one without: capture it anew", optimizer, ErrInvalid, momentum)
	}
	return nil
}

// sign is what gradients are multiplied by.
func sign(maximize bool) float64 {
	if maximize {
		return -1
	}
	return 1
}

// overwritten counts a write in place to each of the tensors that are there.
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
	in, err := rt.acquireStep(op, ts...)
	if err == nil {
		*all = append(*all, in)
	}
	return err
}

func (rt *Runtime) acquireStep(op string, ts ...*Tensor) (operands, error) {
	in, err := rt.acquire(op, ts...)
	if err != nil {
		return in, err
	}
	alike := ts
	if len(ts) > 1 && ts[0].dtype == Float32 && ts[1].dtype == BFloat16 { // a gradient
		alike = append(ts[:1:1], ts[2:]...)
	}
	if err := wantFloats(op, alike...); err != nil {
		in.release()
		return operands{}, err
	}
	for i, t := range ts {
		for _, u := range ts[:i] {
			if err := sameShape(op, u, t); err != nil {
				in.release()
				return operands{}, err
			}
			if u.shares(t) {
				in.release()
				return operands{}, overlapError(op)
			}
		}
	}
	return in, nil
}
