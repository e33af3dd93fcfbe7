package tensor

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// ReLUBiasGrad returns the gradients of both operands of ReLU(x + bias), from its result y (…, n).
// dx is [Gradients.ApplyGrad] of fn.ReLU, written to dst, and db (n) is the sum of its rows. After
// an error dst is undefined.
func (d Gradients) ReLUBiasGrad(ctx context.Context, dst, dy, y *Tensor) (dx, db *Tensor, err error) {
	rt := d.rt
	const op = "ReLUBiasGrad"
	in, err := rt.acquireAlike(op, dy, y)
	if err != nil {
		return nil, nil, err
	}
	defer in.release()
	if len(y.shape) == 0 {
		return nil, nil, fmt.Errorf("tensor: %s: %w: a scalar has no rows", op, ErrShape)
	}
	if db, err = rt.alloc(ctx, op, y.dtype, y.shape[len(y.shape)-1:]); err != nil {
		return nil, nil, err
	}
	dx, err = rt.into(ctx, op, &in, dst, dy, []*Tensor{y}, func(out *Tensor) error {
		if db.bytes == 0 {
			return nil
		}
		return rt.reluBiasGrad(ctx, out, db, dy, y)
	})
	if err != nil {
		rt.parked.add(db.ReleaseContext(ctx))
		return nil, nil, err
	}
	return dx, db, nil
}

func (rt *Runtime) reluBiasGrad(ctx context.Context, dx, db, dy, y *Tensor) error {
	if dx.bytes == 0 {
		return rt.memset("ReLUBiasGrad", db)
	}
	if done, err := rt.fused(ctx, rt.call(backend.ReLUBiasGrad, dx, db, dy, y)); done {
		return err
	}
	if err := rt.zipTo(ctx, backend.ReLUGrad, dx, dy, y); err != nil {
		return err
	}
	return rt.sumTo(ctx, db, keptColumns(dx), dx, 1)
}
