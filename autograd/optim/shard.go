package optim

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Sharded is an [autograd.Attachment] of a parameter that several ranks train. Each may keep a part
// of the gradient and of the optimiser's state, update that part of the parameter, and get the
// others'.
type Sharded interface {
	autograd.Attachment
	// StateShape returns the shape of the part of the state that an optimiser keeps on this rank, or
	// nil if each rank keeps all of it.
	StateShape() []int
	// PartGrad returns this rank's part of the gradient, or nil if [autograd.Parameter.Grad] is whole.
	PartGrad() *tensor.Tensor
	// SetPartGrad replaces it and frees nothing.
	SetPartGrad(g *tensor.Tensor)
	// Operands returns what a step updates, and its gradient. They are valid until EndPiece. p is
	// nil if this rank has no element.
	Operands(ctx context.Context) (p, g *tensor.Tensor, err error)
	EndPiece()
	// Whole returns a new tensor of the parameter's shape, of all ranks' parts of a tensor of the
	// state. All ranks call it. Part copies this rank's part of it back.
	Whole(ctx context.Context, part *tensor.Tensor) (*tensor.Tensor, error)
	Part(ctx context.Context, whole, part *tensor.Tensor) error
	// Shards returns the ranks' common part.
	Shards() Shards
}

// Shards is what the [Sharded] parameters of one model have in common.
type Shards interface {
	// Parameters are all of them. The list is the Shards'.
	Parameters() []*autograd.Parameter
	// NoSync calls f, in which the gradients of backward passes stay on their rank.
	NoSync(f func() error) error
	// EndStep gives all ranks the parts of ps that a step has updated. If the step has failed with
	// err, EndStep returns err. After an error the other ranks' steps fail too.
	EndStep(ps []*autograd.Parameter, err error) error
	// ClipNorm is [tensor.Gradients.ClipNorm] of gradients of which parts are this rank's parts.
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

// endShards ends a step of the parameters that were due, or that failed, in which case the other
// ranks would wait for this one's parts of any.
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
