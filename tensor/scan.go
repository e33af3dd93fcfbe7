package tensor

import (
	"context"

	"github.com/cistern-ml/cistern/tensor/backend"
)

// CumSum returns the cumulative sums of x along a dimension (torch.cumsum). They are computed in
// float64 and rounded once each.
func (r Reductions) CumSum(ctx context.Context, x *Tensor, axis int) (*Tensor, error) {
	return r.rt.runAlong(ctx, opSpec{op: backend.CumSum, name: "CumSum", infer: rows}, []int{axis}, x)
}

// CumSumGrad returns the gradient of x in [Reductions.CumSum]: for each element, the sum of dy from
// there to the end.
func (d Gradients) CumSumGrad(ctx context.Context, dy *Tensor, axis int) (*Tensor, error) {
	return d.rt.runAlong(ctx, opSpec{op: backend.CumSum, name: "CumSumGrad", infer: rows, c: [2]float64{1}}, []int{axis}, dy)
}
