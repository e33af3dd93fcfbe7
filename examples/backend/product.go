package toy

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// matMul multiplies matrices, or a batch of them.
func matMul(a *args) {
	y, p := a.operands[0], backend.ParamsOf[plan.Product](&a.params)
	left, right := a.operands[1], a.operands[2]
	count, at := 1, func(int) (int, int) { return 0, 0 }
	if batch, _ := a.plan.(*plan.Placement); batch != nil {
		count, at = batch.Count(), batch.At
	}
	index := func(i, j, rows, cols int, transposed bool) int {
		if transposed {
			return j*rows + i
		}
		return i*cols + j
	}
	for z := range count {
		l, r := at(z)
		for i := range p.M {
			for j := range p.N {
				y.set((z*p.M+i)*p.N+j, sum(p.K, func(k int) float64 {
					return left.at(l+index(i, k, p.M, p.K, p.TransA)) * right.at(r+index(k, j, p.K, p.N, p.TransB))
				}))
			}
		}
	}
}
