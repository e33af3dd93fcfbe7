package kernel

import "github.com/cistern-ml/cistern/tensor/internal/gemm"

// MatMul is the plan of one product C[m,n] = op(A) op(B) over an inner dimension k, where op transposes what
// TransA and TransB say. A is stored [m,k], or [k,m] if TransA; B is stored [k,n], or [n,k] if TransB.
type MatMul struct {
	M, N, K        int
	TransA, TransB bool
	// Batch, if there is one, is of the factors' matrices (Dst: of A, Src: of B); those of C follow each other.
	Batch *Placement
}

// productOf is one product of the plan.
func productOf[T Float](p MatMul, c, a, b []T) gemm.Product[T] {
	lda, ldb := p.K, p.N
	if p.TransA {
		lda = p.M
	}
	if p.TransB {
		ldb = p.K
	}
	return gemm.Product[T]{M: p.M, N: p.N, K: p.K, A: gemm.A(a, lda, p.TransA), B: gemm.B(b, ldb, p.TransB), C: c, CRow: p.N}
}

// MatMulScratch is the number of elements of scratch memory that a plan takes at most, which are some MiB.
func MatMulScratch[T Float](p MatMul) int {
	if p.Batch != nil && p.alone() {
		return 0
	}
	one := productOf[T](p, nil, nil, nil)
	return one.Scratch()
}

// Multiply sets c to the product. scratch has MatMulScratch elements; nothing overlaps c. With an inner
// dimension of 0 c becomes 0.
func Multiply[T Float](p MatMul, c, a, b, scratch []T) {
	one := productOf(p, c, a, b)
	one.Run(scratch)
}

// Linear is Multiply and then, of every row, AddRows, to the same bits; a plan with a batch is none for it.
func Linear[T Float](p MatMul, c, a, b, bias []T, relu bool, scratch []T) {
	one := productOf(p, c, a, b)
	if one.FinishesColumns() {
		one.ColumnBias, one.ReLU = bias, relu
		one.Run(scratch)
		return
	}
	one.Run(scratch)
	AddRows(c, c, bias, relu)
}
