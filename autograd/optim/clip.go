package optim

import (
	"context"
	"errors"
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// ClipGradNorm scales the gradients in place so that their joint norm is at most most, except for
// rounding (torch.nn.utils.clip_grad_norm_). Call it between Backward and the optimiser's Step. It
// computes the norm and scales the gradients on the device, without waiting. norm is the p of the
// norm, 2 if it is left out, and math.Inf(1) for the greatest magnitude. Parameters without a
// gradient are left out. If the device refuses a launch, some gradients may have been scaled.
func ClipGradNorm(ctx context.Context, ps autograd.Parameters, most float64, norm ...float64) error {
	total, err := ClipGradNormOf(ctx, ps, most, norm...)
	return errors.Join(err, total.ReleaseContext(ctx))
}

// ClipGradNormOf is [ClipGradNorm] and also returns the norm before the scaling, as a scalar that
// the caller must release.
func ClipGradNormOf(ctx context.Context, ps autograd.Parameters, most float64, norm ...float64) (*tensor.Tensor, error) {
	p := 2.0
	if len(norm) > 0 {
		p = norm[0]
	}
	if len(norm) > 1 {
		return nil, fmt.Errorf("optim: ClipGradNorm: %w: %d norms: want one", autograd.ErrInvalid, len(norm))
	}
	rt, grads, parts, err := gradientsOf(ps, "ClipGradNorm")
	if err != nil {
		return nil, err
	}
	var total *tensor.Tensor
	if parts.of != nil {
		total, err = parts.of.ClipNorm(ctx, most, p, parts.grads, grads)
	} else {
		total, err = rt.ClipNorm(ctx, most, p, grads...)
	}
	if err != nil {
		return nil, fmt.Errorf("optim: ClipGradNorm: %w", err)
	}
	return total, nil
}

// ClipGradValue limits the elements of the gradients to the range from -most to most, in place
// (torch.nn.utils.clip_grad_value_). If the device refuses a launch, some gradients may have been
// clipped.
func ClipGradValue(ctx context.Context, ps autograd.Parameters, most float64) error {
	if err := check.Context("optim: ClipGradValue", ctx); err != nil {
		return err
	}
	rt, grads, parts, err := gradientsOf(ps, "ClipGradValue")
	if err == nil {
		err = rt.ClipValue(ctx, most, append(grads, parts.grads...)...)
	}
	if err != nil {
		return fmt.Errorf("optim: ClipGradValue: %w", err)
	}
	return nil
}

// gradientParts are this rank's parts of sharded gradients.
type gradientParts struct {
	of    Shards // nil: there are none
	grads []*tensor.Tensor
}

// gradientsOf returns the parameters' runtime, their whole gradients, and this rank's parts of
// sharded ones.
func gradientsOf(ps autograd.Parameters, op string) (rt *tensor.Runtime, grads []*tensor.Tensor, parts gradientParts, err error) {
	for _, p := range ps {
		if err := p.Err(); err != nil {
			return nil, nil, parts, fmt.Errorf("optim: %s: parameter %q: %w", op, p.Name, err)
		}
		if rt == nil {
			rt = p.Value().Runtime()
		}
		if sh, ok := autograd.Attached[Sharded](p.Parameter); ok && sh.PartGrad() != nil {
			if parts.of != nil && parts.of != sh.Shards() {
				return nil, nil, parts, fmt.Errorf("optim: %s: %w: parameter %q is sharded by another Parallel than the ones before: clip them separately", op, autograd.ErrInvalid, p.Name)
			}
			parts.of, parts.grads = sh.Shards(), append(parts.grads, sh.PartGrad())
		}
		if p.Grad() != nil {
			grads = append(grads, p.Grad())
		}
	}
	if rt == nil {
		return nil, nil, parts, fmt.Errorf("optim: %s: %w: no parameters", op, autograd.ErrInvalid)
	}
	return rt, grads, parts, nil
}
