package tensor

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// Apply returns f of each element of x.
func (e Elementwise) Apply(ctx context.Context, f fn.Function, x *Tensor) (*Tensor, error) {
	if err := checkFunction("Apply", f, f.Op, backend.Map); err != nil {
		return nil, err
	}
	return e.rt.run(ctx, opSpec{op: f.Op, to: donated, c: [2]float64{f.C, f.D}}, x)
}

// ApplyGrad returns the gradient of f's argument: dy, the gradient of the result, times the
// derivative. saved is the argument or, with f.OfResult, the result. The gradient is written to
// dst: dy itself to work in place, or nil for a new tensor. All tensors have one shape.
func (d Gradients) ApplyGrad(ctx context.Context, f fn.Function, dst, dy, saved *Tensor) (*Tensor, error) {
	if err := checkFunction("ApplyGrad", f, f.Grad, backend.MapGrad, backend.Zip); err != nil {
		return nil, err
	}
	return d.rt.run(ctx, opSpec{op: f.Grad, to: into, dst: dst, c: [2]float64{f.C, f.D}}, dy, saved)
}

// checkFunction returns an error if op, which computes f or its gradient, belongs to none of the
// families, or if the parameters are wrong.
func checkFunction(apply string, f fn.Function, op backend.Op, families ...backend.Family) error {
	switch {
	case f.Op == backend.NoOp:
		return fmt.Errorf("tensor: %s: %w: the function is empty: want one of package fn", apply, ErrInvalid)
	case op == backend.NoOp:
		return fmt.Errorf("tensor: %s: %w: the gradient of %s is not an operation of its own", apply, ErrInvalid, f)
	case op >= backend.Ops || !slices.Contains(families, op.Family()):
		return fmt.Errorf("tensor: %s: %w: operation %d is not an elementwise function: want one of package fn", apply, ErrInvalid, op)
	case math.IsNaN(f.C) || math.IsNaN(f.D):
		return fmt.Errorf("tensor: %s: %w: a parameter is NaN", f.Op.Name(), ErrInvalid)
	case f.Ordered && f.C > f.D:
		return fmt.Errorf("tensor: %s: %w: the lower bound %v is above the upper one, %v", f.Op.Name(), ErrInvalid, f.C, f.D)
	}
	return nil
}
