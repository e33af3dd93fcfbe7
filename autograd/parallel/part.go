package parallel

import (
	"context"
	"errors"

	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// What checkpoints need of a Parallel.

// Check waits for what is queued on the runtime, and returns an error if that may have failed. After
// an error the communicator has ended.
func (d *Parallel) Check(ctx context.Context) error {
	if err := check.Context("parallel: Check", ctx); err != nil {
		return err
	}
	if err := d.rt.Synchronize(ctx); err != nil {
		return d.tell(err)
	}
	return d.comm.AsyncError()
}

// Whole returns a tensor of all ranks' parts.
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

// copyPart copies this rank's part into a whole tensor, or out of it.
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

// Part copies this rank's part of a whole tensor to part.
func (r *replica) Part(ctx context.Context, whole, part *tensor.Tensor) error {
	return r.copyPart(ctx, whole, part, false)
}
