package offload

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/tensor"
)

// State keeps an optimiser's state in pinned host memory between the steps, with o. A step moves it
// in pieces of about piece bytes of state and of offloaded parameters ([Parameters]), larger
// parameters first; 0 is [optim.DefaultOffloadPiece]. On copy streams the next piece comes and the
// previous one leaves while one is updated. Results are bit-identical. Tensors that are too small
// or find no pinned memory stay on the device ([tensor.OffloadConfig]). A nil o brings the state
// back.
//
// If there is no memory for a piece after the first one, Step returns an error with the number of
// parameters that were updated. After an error of memory or of a copy, here and in Step, some of
// the state may have moved, but all of it is usable. The optimiser must be closed before o.
func State(ctx context.Context, opt optim.Optimizer, o *tensor.Offloader, piece int64) error {
	s, err := optim.CoreOf(opt)
	switch {
	case err != nil:
	case ctx == nil:
		err = fmt.Errorf("%w: the context is nil; use context.Background()", autograd.ErrInvalid)
	case piece < 0:
		err = fmt.Errorf("%w: pieces of %d bytes: want 0 or more", autograd.ErrInvalid, piece)
	case o == nil:
		err = s.SetStage(ctx, nil, piece)
	case o.Runtime() != s.Runtime():
		err = fmt.Errorf("%w: the offloader is of another runtime than the parameters", autograd.ErrInvalid)
	default:
		err = s.SetStage(ctx, hostStage{by: o}, piece)
	}
	if err != nil {
		return fmt.Errorf("offload: State: %w", err)
	}
	return nil
}

// hostStage is an optim.Stage that moves tensors to pinned host memory.
type hostStage struct {
	by   *tensor.Offloader
	keep bool // the host's copy stays valid on the device, until the tensor is written
}

// Bring makes x usable.
func (s hostStage) Bring(ctx context.Context, x *tensor.Tensor) error {
	switch {
	case !x.Offloaded():
		return nil
	case s.keep:
		return s.by.FetchKeep(ctx, x)
	}
	return s.by.Fetch(ctx, x)
}

// Ahead begins to bring x.
func (s hostStage) Ahead(ctx context.Context, x *tensor.Tensor) error {
	if x.Released() || !x.Offloaded() || s.by.Ahead() == 0 {
		return nil
	}
	return s.by.Prefetch(ctx, x)
}

// Leave moves x to the host, unless other tensors share its memory. It cancels a copy to the device
// that is in flight. If the program has closed the offloader, x stays.
func (s hostStage) Leave(ctx context.Context, x *tensor.Tensor) error {
	if x.Released() || !x.Offloaded() && tensor.MemoryOf(x).Tensors() != 1 {
		return nil
	}
	if _, err := s.by.Offload(ctx, x); err != nil && !errors.Is(err, tensor.ErrClosed) {
		return err
	}
	return nil
}
