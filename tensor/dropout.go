package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Dropout returns x with each element 0 with probability p, and the others over 1-p (torch.nn.functional.dropout). Which ones
// depends on seed, stream and the element's place alone, on every device: the gradient is Dropout of that of the result with
// the same numbers, and no mask is kept. Two streams of a seed have nothing in common. The result goes to dst, which may be
// x to work in place, or nil for a new tensor.
func (e Elementwise) Dropout(ctx context.Context, dst, x *Tensor, p float64, seed, stream uint64) (*Tensor, error) {
	return e.rt.dropout(ctx, "Dropout", dst, x, p, plan.Drop{Seed: seed, Stream: stream}, nil)
}

// DropoutSeeded is [Elementwise.Dropout] with a seed in device memory: seed is one Int64, whose
// bits are the seed when the work runs. A graph can have another one at each replay ([Scalars]).
func (e Elementwise) DropoutSeeded(ctx context.Context, dst, x *Tensor, p float64, seed *Tensor, stream uint64) (*Tensor, error) {
	rt := e.rt
	const op = "DropoutSeeded"
	in, err := rt.acquire(op, seed)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if !seed.is(Int64) || seed.Elements() != 1 {
		return nil, fmt.Errorf("tensor: %s: %w: the seed is %v %v: want one int64", op, ErrDtype, seed.dtype, seed.shape)
	}
	return rt.dropout(ctx, op, dst, x, p, plan.Drop{Stream: stream}, seed)
}

func (rt *Runtime) dropout(ctx context.Context, op string, dst, x *Tensor, p float64, d plan.Drop, live *Tensor) (*Tensor, error) {
	in, err := rt.acquireFloats(op, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if !(p >= 0 && p <= 1) {
		return nil, fmt.Errorf("tensor: %s: %w: probability %v: want 0..1", op, ErrInvalid, p)
	}
	d.Below = uint64(math.Round(p * (1 << 32)))
	if p < 1 {
		d.Scale = 1 / (1 - p)
	}
	run := func(out *Tensor) error {
		if out.bytes == 0 {
			return nil
		}
		c := rt.call(backend.Dropout, out, x, live)
		backend.SetParams(c, d)
		return rt.backend.Do(ctx, c)
	}
	if dst != nil {
		return rt.into(ctx, op, dst, x, present(nil, live), run)
	}
	out, err := rt.allocResult(ctx, op, &in, x.shape, x, nil)
	if err != nil {
		return nil, err
	}
	return out.orRelease(run(out))
}
