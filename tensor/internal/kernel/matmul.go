package kernel

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/gemm"
)

// productOf returns a single product.
func productOf[T Float](p *plan.Product, c, a, b []T) gemm.Product[T] {
	lda, ldb := p.K, p.N
	if p.TransA {
		lda = p.M
	}
	if p.TransB {
		ldb = p.K
	}
	return gemm.Product[T]{M: p.M, N: p.N, K: p.K, A: gemm.A(a, lda, p.TransA), B: gemm.B(b, ldb, p.TransB), C: c, CRow: p.N}
}

// alone reports whether the batch has enough products for each of them to run on one goroutine.
func alone(p *plan.Product, batch *plan.Placement) bool {
	return batch != nil && (p.M*p.N*p.K < grainFlops || batch.Count() >= 4*runtime.GOMAXPROCS(0))
}

// MatMulScratch returns the largest number of elements of scratch memory that a product, or a batch
// of them, uses. It is some MiB.
func MatMulScratch[T Float](p *plan.Product, batch *plan.Placement) int {
	if alone(p, batch) {
		return 0
	}
	one := productOf[T](p, nil, nil, nil)
	return one.Scratch()
}

// Multiply sets c to the product, or to the products of a batch; batch is nil for a single product.
// batch has the offsets of the factors' matrices (Dst for a, Src for b). The matrices of c are
// consecutive. scratch has MatMulScratch elements. Nothing may overlap c. If the inner dimension is
// 0, c becomes 0.
func Multiply[T Float](p *plan.Product, batch *plan.Placement, c, a, b, scratch []T) {
	if batch == nil {
		one := productOf(p, c, a, b)
		one.Run(scratch)
		return
	}
	alone := alone(p, batch)
	each := func(lo, hi int) {
		for i := lo; i < hi; i++ {
			oa, ob := batch.At(i)
			one := productOf(p, c[i*p.M*p.N:][:p.M*p.N], a[oa:][:p.M*p.K], b[ob:][:p.K*p.N])
			if alone {
				one.RunAlone()
			} else {
				one.Run(scratch)
			}
		}
	}
	if alone {
		split(batch.Count(), max(1, grainFlops/max(1, p.M*p.N*p.K)), each)
	} else {
		each(0, batch.Count())
	}
}

// Linear is Multiply followed by AddRows, and bit-identical to them.
func Linear[T Float](p *plan.Product, c, a, b, bias []T, relu bool, scratch []T) {
	one := productOf(p, c, a, b)
	if one.FinishesColumns() {
		one.ColumnBias, one.ReLU = bias, relu
		one.Run(scratch)
		return
	}
	one.Run(scratch)
	AddRows(c, c, bias, relu)
}
