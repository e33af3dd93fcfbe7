package parallel

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// The methods of a Parallel that checkpoints use.

// Check waits for the work that is queued on the runtime, and returns an error if it may have
// failed. After an error the communicator has ended.
func (d *Parallel) Check(ctx context.Context) error {
	if err := check.Context("parallel: Check", ctx); err != nil {
		return err
	}
	if err := d.rt.Synchronize(ctx); err != nil {
		return d.tell(err)
	}
	return d.comm.AsyncError()
}

// Whole gathers all ranks' parts into a new tensor of the parameter's shape.
func (r *replica) Whole(ctx context.Context, part *tensor.Tensor) (*tensor.Tensor, error) {
	d := r.of
	t, err := d.rt.New(ctx, part.Dtype(), r.Value().Shape()...)
	if err != nil {
		return nil, d.tell(err)
	}
	err = r.copyPart(ctx, t, part, true)
	if err == nil {
		err = d.fork()
	}
	if err == nil {
		err = d.handOver(d.grouped(func() error { return r.gather(t) }), t)
	}
	return t, d.tell(err)
}

// copyPart copies part to this rank's part of whole if into is set, otherwise the other way.
func (r *replica) copyPart(ctx context.Context, whole, part *tensor.Tensor, into bool) error {
	view, err := r.view(ctx, whole)
	if err != nil {
		return err
	}
	if into {
		err = r.of.rt.CopyInPlace(ctx, view, part)
	} else {
		err = r.of.rt.CopyInPlace(ctx, part, view)
	}
	return errors.Join(err, view.ReleaseContext(ctx))
}

// Part copies this rank's part of whole to part.
func (r *replica) Part(ctx context.Context, whole, part *tensor.Tensor) error {
	return r.copyPart(ctx, whole, part, false)
}
