package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Dropout returns x with each element set to 0 with probability p, and the others divided by 1-p
// (torch.nn.functional.dropout). The choice depends only on r and the element's index, on every
// device. So no mask is kept: the gradient is Dropout of the result's gradient with the same p and
// r. The result is written to dst, which may be x to work in place, or nil for a new tensor.
func (e Elementwise) Dropout(ctx context.Context, dst, x *Tensor, p float64, r Random) (*Tensor, error) {
	rt := e.rt
	const op = "Dropout"
	in, err := rt.acquireRandom(op, r, x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if err := wantFloats(op, x); err != nil {
		return nil, err
	}
	if !(p >= 0 && p <= 1) {
		return nil, fmt.Errorf("tensor: %s: %w: probability %v: want 0..1", op, ErrInvalid, p)
	}
	d := plan.Drop{Random: r.plan(), Below: uint64(math.Round(p * (1 << 32)))}
	if p < 1 {
		d.Scale = 1 / (1 - p)
	}
	run := func(out *Tensor) error {
		if out.bytes == 0 {
			return nil
		}
		c := rt.call(backend.Dropout, out, x, r.Live)
		backend.SetParams(c, d)
		return rt.backend.Do(ctx, c)
	}
	if dst != nil {
		return rt.into(ctx, op, &in, dst, x, present(nil, r.Live), run)
	}
	out, err := rt.allocResult(ctx, op, &in, x.shape, x, nil)
	if err != nil {
		return nil, err
	}
	return out.orRelease(run(out))
}
