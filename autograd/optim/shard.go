package optim

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Sharded is an [autograd.Attachment] of a parameter that several ranks train. Each rank may keep a
// part of the gradient and of the optimiser's state, update that part of the parameter, and receive
// the other parts from the other ranks.
type Sharded interface {
	autograd.Attachment
	// StateShape returns the shape of this rank's part of the optimiser's state, or nil if each
	// rank keeps the whole state.
	StateShape() []int
	// PartGrad returns this rank's part of the gradient, or nil if [autograd.Parameter.Grad] is
	// whole.
	PartGrad() *tensor.Tensor
	// SetPartGrad replaces this rank's part of the gradient without freeing the old one.
	SetPartGrad(g *tensor.Tensor)
	// Operands returns the tensor that a step updates and its gradient. They are valid until
	// EndPiece. p is nil if this rank has no element.
	Operands(ctx context.Context) (p, g *tensor.Tensor, err error)
	EndPiece()
	// Whole gathers all ranks' parts of a state tensor into a new tensor of the parameter's shape.
	// All ranks must call it. Part copies this rank's part of such a tensor back.
	Whole(ctx context.Context, part *tensor.Tensor) (*tensor.Tensor, error)
	Part(ctx context.Context, whole, part *tensor.Tensor) error
	// Shards returns the model's Shards.
	Shards() Shards
}

// Shards is the common part of the [Sharded] parameters of one model.
type Shards interface {
	// Parameters returns all of them. The list belongs to the Shards.
	Parameters() []*autograd.Parameter
	// NoSync calls f. During f the gradients of backward passes are not exchanged.
	NoSync(f func() error) error
	// EndStep distributes the parts of ps that a step has updated to all ranks. If err is not nil,
	// the step has failed with it, and EndStep returns it. After an error the other ranks' steps
	// fail too.
	EndStep(ps []*autograd.Parameter, err error) error
	// ClipNorm is [tensor.Gradients.ClipNorm] of the whole gradients, and of gradients of which
	// this rank has parts.
	ClipNorm(ctx context.Context, most, p float64, parts, whole []*tensor.Tensor) (*tensor.Tensor, error)
}

// isSharded reports whether several ranks train a parameter.
func isSharded(p *autograd.Parameter) bool {
	_, ok := autograd.Attached[Sharded](p)
	return ok
}

// hasGrad reports whether a parameter has a gradient, or this rank's part of it.
func hasGrad(p *autograd.Parameter) bool {
	if p.Grad() != nil {
		return true
	}
	sh, ok := autograd.Attached[Sharded](p)
	return ok && sh.PartGrad() != nil
}

// endShards ends a step of the parameters in due. If the step failed it ends it for all parameters,
// because the other ranks may wait for this rank's part of any of them.
func (s *Base) endShards(due []int, err error) error {
	if err != nil {
		due = s.choose(nil, func(*autograd.Parameter) bool { return true })
	}
	var seen []Shards
	for _, i := range due {
		sh, ok := autograd.Attached[Sharded](s.params[i].Parameter)
		if !ok || slices.Contains(seen, sh.Shards()) {
			continue
		}
		of := sh.Shards()
		seen = append(seen, of)
		s.shared = s.shared[:0]
		for _, k := range due {
			if sh, ok := autograd.Attached[Sharded](s.params[k].Parameter); ok && sh.Shards() == of {
				s.shared = append(s.shared, s.params[k].Parameter)
			}
		}
		if failed := of.EndStep(s.shared, err); err == nil && failed != nil {
			err = fmt.Errorf("optim: %s step: %w", s.kind, failed)
		}
	}
	return err
}
