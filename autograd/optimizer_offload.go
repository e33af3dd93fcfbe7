package autograd

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// DefaultOffloadPiece is how much state a step has on the device at a time, in bytes, unless OffloadState says it.
const DefaultOffloadPiece = 64 << 20

// stateOffload is where the state of an optimiser lives between its steps.
type stateOffload struct {
	by    *tensor.Offloader // nil: on the device
	piece int64             // bytes
}

// OffloadState lets the state live in pinned host memory between the steps, with o, from now on. A step brings it in and out in pieces of about
// so many bytes of state and of offloaded parameters ([Parameters.Offload]), 0 for [DefaultOffloadPiece], the larger parameters first, on copy streams: the next piece comes while one is updated and the one before
// goes. Numbers are the same to the bit. What is too small or finds no pinned memory stays on the device ([tensor.OffloadConfig]). nil brings the state back.
//
// If there is no memory for a piece behind the first one, Step is an error that says how many parameters have been updated. The optimiser
// is closed before o.
func (s *optimizerState) OffloadState(ctx context.Context, o *tensor.Offloader, piece int64) error {
	switch {
	case ctx == nil:
		return fmt.Errorf("autograd: OffloadState: %w: the context is nil; use context.Background()", ErrInvalid)
	case piece < 0:
		return fmt.Errorf("autograd: OffloadState: %w: pieces of %d bytes: want 0 or more", ErrInvalid, piece)
	case o != nil && o.Runtime() != s.rt:
		return fmt.Errorf("autograd: OffloadState: %w: the offloader is of another runtime than the parameters", ErrInvalid)
	}
	if piece == 0 {
		piece = DefaultOffloadPiece
	}
	ctx = tensor.Detached(ctx)
	all := make([]int, len(s.params))
	for i := range all {
		all[i] = i
	}
	if s.offload.by != nil && s.offload.by != o {
		if err := s.fetch(ctx, all); err != nil {
			return fmt.Errorf("autograd: OffloadState: %w", err)
		}
	}
	s.offload = stateOffload{o, piece}
	if err := s.park(ctx, all); err != nil {
		return fmt.Errorf("autograd: OffloadState: %w", err)
	}
	return nil
}

// parametersOffloaded reports whether some of the parameters live in pinned memory.
func (s *optimizerState) parametersOffloaded(params []int) bool {
	return slices.ContainsFunc(params, func(i int) bool { return groupOf(s.params[i].Parameter) != nil })
}

// inPieces calls step for pieces of due, whose state and parameters are on the device then.
func (s *optimizerState) inPieces(ctx context.Context, due []int, step func([]int) error) error {
	if c := s.rt.Capturing(); c != nil && s.parametersOffloaded(due) {
		return fmt.Errorf("autograd: %s step: %w", s.kind, c.Refuse("a step of offloaded parameters", capturedParameters))
	}
	ctx = tensor.Detached(ctx)
	pieces := s.pieces(due)
	updated := 0
	for k, piece := range pieces {
		err := s.bring(ctx, piece)
		if err == nil && k+1 < len(pieces) {
			err = s.prefetch(ctx, pieces[k+1])
		}
		if err == nil {
			if err = step(piece); err == nil {
				updated += len(piece)
				err = s.takeAway(ctx, piece)
			}
		}
		if err != nil {
			return errors.Join(fmt.Errorf("autograd: %s step: %d of %d parameters updated: %w", s.kind, updated, len(due), err), s.takeAway(ctx, due))
		}
	}
	return nil
}

// pieces cuts the parameters that are due, the larger ones first: if there is memory for the first piece there will be for those behind it.
func (s *optimizerState) pieces(due []int) (pieces [][]int) {
	bytes := func(i int) (n int64) {
		if s.offload.by != nil {
			for _, t := range s.state[i] {
				n += t.Bytes()
			}
		}
		if p := s.params[i]; groupOf(p.Parameter) != nil {
			n += p.value.Bytes()
		}
		return n
	}
	due = slices.Clone(due)
	slices.SortStableFunc(due, func(i, j int) int { return cmp.Compare(bytes(j), bytes(i)) })
	size, most := int64(0), s.offload.piece
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
func (s *optimizerState) bring(ctx context.Context, params []int) error {
	if err := s.fetch(ctx, params); err != nil {
		return err
	}
	return eachOffloaded(s.params, params, func(g *parameterGroup, x *tensor.Tensor) error { return g.fetch(ctx, x) })
}

// takeAway moves what bring has brought to where it lives.
func (s *optimizerState) takeAway(ctx context.Context, params []int) error {
	return errors.Join(s.park(ctx, params), eachOffloaded(s.params, params, func(g *parameterGroup, x *tensor.Tensor) error { return g.leave(ctx, x) }))
}

// eachOffloaded calls f for the values of the parameters that live in pinned memory, until one fails.
func eachOffloaded(all Parameters, params []int, f func(*parameterGroup, *tensor.Tensor) error) error {
	for _, i := range params {
		p := all[i]
		g := groupOf(p.Parameter)
		if g == nil {
			continue
		}
		if err := f(g, p.value); err != nil {
			return fmt.Errorf("parameter %q: %w", p.Name, err)
		}
	}
	return nil
}

// fetch makes the state of parameters usable.
func (s *optimizerState) fetch(ctx context.Context, params []int) error {
	return s.each(params, func(t *tensor.Tensor) error {
		if !t.Offloaded() {
			return nil
		}
		return s.offload.by.Fetch(ctx, t)
	})
}

// prefetch begins to bring parameters and their state in, as far as there is memory.
func (s *optimizerState) prefetch(ctx context.Context, params []int) error {
	ahead := func(o *tensor.Offloader, t *tensor.Tensor) error {
		if !t.Offloaded() || o.Ahead() == 0 {
			return nil
		}
		return o.Prefetch(ctx, t)
	}
	err := s.each(params, func(t *tensor.Tensor) error { return ahead(s.offload.by, t) })
	if err == nil {
		err = eachOffloaded(s.params, params, func(g *parameterGroup, x *tensor.Tensor) error { return ahead(g.by, x) })
	}
	if errors.Is(err, memcache.ErrOutOfMemory) {
		return nil
	}
	return err
}

// park moves the state of parameters to the host, if it lives there.
func (s *optimizerState) park(ctx context.Context, params []int) error {
	if s.offload.by == nil {
		return nil
	}
	return s.each(params, func(t *tensor.Tensor) error {
		_, err := s.offload.by.Offload(ctx, t)
		return err
	})
}

// each calls f for the tensors of the parameters' state, until one fails.
func (s *optimizerState) each(params []int, f func(*tensor.Tensor) error) error {
	for _, i := range params {
		for _, t := range s.state[i] {
			if err := f(t); err != nil {
				return fmt.Errorf("state of parameter %q: %w", s.params[i].Name, err)
			}
		}
	}
	return nil
}
