package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// CumSum returns the sums of the elements up to each along a dimension (torch.cumsum), in float64
// and rounded once each.
func (r Reductions) CumSum(ctx context.Context, x *Tensor, axis int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.CumSum, name: "CumSum", infer: rows}, []int{axis}, x)
}

// CumSumGrad is the gradient of [Reductions.CumSum]'s argument: the sums of dy from each element
// on.
func (d Gradients) CumSumGrad(ctx context.Context, dy *Tensor, axis int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.CumSum, name: "CumSumGrad", infer: rows, c: [2]float64{1}}, []int{axis}, dy)
}
