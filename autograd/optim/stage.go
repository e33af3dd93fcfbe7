package optim

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// DefaultOffloadPiece is how many bytes of state and of offloaded parameters a step holds on the
// device at a time, unless [Base.SetStage] sets another size.
const DefaultOffloadPiece = 64 << 20

// Stage moves tensors between the device and their storage between uses. If an
// [autograd.Attachment] of a parameter is a Stage, it moves the parameter's value, also for the
// pieces of an optimiser's step.
type Stage interface {
	// Bring makes x usable on the runtime's stream.
	Bring(ctx context.Context, x *tensor.Tensor) error
	// Ahead begins to bring x, if that saves time. The optimiser ignores [memcache.ErrOutOfMemory].
	Ahead(ctx context.Context, x *tensor.Tensor) error
	// Leave moves x to its storage.
	Leave(ctx context.Context, x *tensor.Tensor) error
}

// SetStage makes the optimiser move its state with st, in pieces of piece bytes of state and of
// offloaded parameters; 0 is [DefaultOffloadPiece]. A nil st brings the state back to the device.
// offload.State uses SetStage with the Stage of package offload.
func (s *Base) SetStage(ctx context.Context, st Stage, piece int64) error {
	if err := check.Context("optim: SetStage", ctx); err != nil {
		return err
	}
	if piece == 0 {
		piece = DefaultOffloadPiece
	}
	ctx = tensor.Detached(ctx)
	all := s.choose(nil, func(*autograd.Parameter) bool { return true })
	if s.stage != nil && s.stage != st {
		if err := s.fetch(ctx, all); err != nil {
			return err
		}
	}
	s.stage, s.piece = st, piece
	return s.park(ctx, all)
}

// staged reports whether some of the parameters have a Stage.
func (s *Base) staged(params []int) bool {
	return slices.ContainsFunc(params, func(i int) bool {
		_, ok := autograd.Attached[Stage](s.params[i].Parameter)
		return ok
	})
}

// capturedParameters is the reason in the error of a captured step with offloaded parameters.
const capturedParameters = "memory stays where it is while a graph uses it: bring the parameters back before the capture, by offload.Parameters with nil"

// inPieces updates due in pieces, and holds only their state and parameters on the device.
func (s *Base) inPieces(ctx context.Context, due []int) error {
	if c := s.rt.Capturing(); c != nil && s.staged(due) {
		return fmt.Errorf("optim: %s step: %w", s.kind, c.Refuse("a step of offloaded parameters", capturedParameters))
	}
	ctx = tensor.Detached(ctx)
	pieces := s.pieces(due)
	updated := 0
	for k, piece := range pieces {
		err := s.bring(ctx, piece)
		if err == nil && k+1 < len(pieces) {
			err = s.ahead(ctx, pieces[k+1])
		}
		if err == nil {
			if err = s.stepPiece(ctx, piece); err == nil {
				updated += len(piece)
				err = s.takeAway(ctx, piece)
			}
		}
		if err != nil {
			return errors.Join(fmt.Errorf("optim: %s step: %d of %d parameters updated: %w", s.kind, updated, len(due), err), s.takeAway(ctx, due))
		}
	}
	return nil
}

// pieces divides the parameters into pieces, larger parameters first: if there is memory for the
// first piece, there is for the later ones.
func (s *Base) pieces(due []int) (pieces [][]int) {
	bytes := func(i int) (n int64) {
		if s.stage != nil {
			for _, t := range s.state[i] {
				n += t.Bytes()
			}
		}
		if p := s.params[i].Parameter; s.staged([]int{i}) {
			n += p.Value().Bytes()
		}
		return n
	}
	due = slices.Clone(due)
	slices.SortStableFunc(due, func(i, j int) int { return cmp.Compare(bytes(j), bytes(i)) })
	size, most := int64(0), s.piece
	if most == 0 { // only parameters are offloaded
		most = DefaultOffloadPiece
	}
	for _, i := range due {
		n := bytes(i)
		if len(pieces) == 0 || size+n > most {
			pieces, size = append(pieces, nil), 0
		}
		last := len(pieces) - 1
		pieces[last], size = append(pieces[last], i), size+n
	}
	return pieces
}

// bring makes parameters and their state usable.
func (s *Base) bring(ctx context.Context, params []int) error {
	if err := s.fetch(ctx, params); err != nil {
		return err
	}
	return s.eachValue(params, func(st Stage, x *tensor.Tensor) error { return st.Bring(ctx, x) })
}

// takeAway undoes bring.
func (s *Base) takeAway(ctx context.Context, params []int) error {
	return errors.Join(s.park(ctx, params), s.eachValue(params, func(st Stage, x *tensor.Tensor) error { return st.Leave(ctx, x) }))
}

// ahead begins to bring parameters and their state, as far as memory allows.
func (s *Base) ahead(ctx context.Context, params []int) error {
	err := s.eachState(params, func(st Stage, x *tensor.Tensor) error { return st.Ahead(ctx, x) })
	if err == nil {
		err = s.eachValue(params, func(st Stage, x *tensor.Tensor) error { return st.Ahead(ctx, x) })
	}
	if errors.Is(err, memcache.ErrOutOfMemory) {
		return nil
	}
	return err
}

// fetch makes the state of parameters usable.
func (s *Base) fetch(ctx context.Context, params []int) error {
	return s.eachState(params, func(st Stage, x *tensor.Tensor) error { return st.Bring(ctx, x) })
}

// park moves the state of parameters to its storage.
func (s *Base) park(ctx context.Context, params []int) error {
	return s.eachState(params, func(st Stage, x *tensor.Tensor) error { return st.Leave(ctx, x) })
}

// eachValue calls f for the values of the parameters that have a Stage, until a call fails.
func (s *Base) eachValue(params []int, f func(Stage, *tensor.Tensor) error) error {
	for _, i := range params {
		p := s.params[i]
		if st, ok := autograd.Attached[Stage](p.Parameter); ok {
			if err := f(st, p.Value()); err != nil {
				return fmt.Errorf("parameter %q: %w", p.Name, err)
			}
		}
	}
	return nil
}

// eachState calls f for the tensors of the parameters' state, if there is a Stage, until a call
// fails.
func (s *Base) eachState(params []int, f func(Stage, *tensor.Tensor) error) error {
	if s.stage == nil {
		return nil
	}
	for _, i := range params {
		for _, t := range s.state[i] {
			if err := f(s.stage, t); err != nil {
				return fmt.Errorf("state of parameter %q: %w", s.params[i].Name, err)
			}
		}
	}
	return nil
}
