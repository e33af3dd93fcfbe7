package kernel

import (
	"runtime"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/gemm"
)

// productOf is one product.
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

// alone: there are products enough in the batch for each to be one goroutine's.
func alone(p *plan.Product, batch *plan.Placement) bool {
	return batch != nil && (p.M*p.N*p.K < grainFlops || batch.Count() >= 4*runtime.GOMAXPROCS(0))
}

// MatMulScratch is the number of elements of scratch memory that a product, or a batch of them,
// takes at most, which are some MiB.
func MatMulScratch[T Float](p *plan.Product, batch *plan.Placement) int {
	if alone(p, batch) {
		return 0
	}
	one := productOf[T](p, nil, nil, nil)
	return one.Scratch()
}

// Multiply sets c to the product, or to the products of a batch: it is of the factors' matrices
// (Dst: of a, Src: of b), and those of c follow each other; nil: one product. scratch has
// MatMulScratch elements; nothing overlaps c. With an inner dimension of 0 c becomes 0.
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

// Linear is Multiply and then, of every row, AddRows, to the same bits.
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
