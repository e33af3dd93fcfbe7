package tensor

import (
	"context"
	"fmt"
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// apply is an elementwise function with parameters c and d.
func (rt *Runtime) apply(ctx context.Context, op backend.Op, x *Tensor, c, d float64) (*Tensor, error) {
	in, err := rt.acquireFloats(op.Name(), x)
	if err != nil {
		return nil, err
	}
	defer in.release()
	if math.IsNaN(c) || math.IsNaN(d) {
		return nil, fmt.Errorf("tensor: %s: %w: a parameter is NaN", op.Name(), ErrInvalid)
	}
	return rt.reusing(ctx, op.Name(), &in, x.shape, x, nil, func(out *Tensor) error {
		call := rt.call(op, out, x)
		call.C = [2]float64{c, d}
		return rt.backend.Do(ctx, call)
	})
}

// ordered is an error if the first bound is above the second one.
func ordered(op string, low, high float64) error {
	if low > high {
		return fmt.Errorf("tensor: %s: %w: the lower bound %v is above the upper one, %v", op, ErrInvalid, low, high)
	}
	return nil
}
