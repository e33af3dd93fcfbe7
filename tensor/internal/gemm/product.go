package gemm

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// Product is a product C = A B, or C += A B if Add is set. A has M items and B has N, each of K
// elements. The rows of C are CRow elements apart. After its K steps, an element of C is finished
// as Finish describes. C must not overlap A or B.
type Product[T Float] struct {
	M, N, K int
	A, B    Factor[T]
	C       []T
	CRow    int
	Add     bool
	Finish[T]
}

// A returns the factor of a matrix with rows ld elements apart: [m,k], or [k,m] if it is
// transposed.
func A[T Float](data []T, ld int, transposed bool) Factor[T] {
	if transposed {
		return Factor[T]{Data: data, Item: 1, K: ld}
	}
	return Factor[T]{Data: data, Item: ld, K: 1}
}

// B returns the factor of a matrix with rows ld elements apart: [k,n], or [n,k] if it is
// transposed.
func B[T Float](data []T, ld int, transposed bool) Factor[T] { return A(data, ld, !transposed) }

// Finish describes what is applied to a complete element of C, in this order.
type Finish[T Float] struct {
	RowBias, ColumnBias []T  // added unless they are nil
	ReLU                bool // sets negative elements to 0
}

func (f *Finish[T]) needed() bool { return f.RowBias != nil || f.ColumnBias != nil || f.ReLU }

// FinishesColumns reports whether a bias of the columns leaves the order of summation unchanged. It
// does not for a product with one column, because only without the bias is it computed as a product
// with a vector.
func (p *Product[T]) FinishesColumns() bool { return p.N > 1 || p.M == 1 }

// finish applies f to some rows and columns of C.
func (f *Finish[T]) finish(level simd.Level, c []T, crs, row, column, rows, columns int) {
	var rowBias, columnBias []T
	if f.RowBias != nil {
		rowBias = f.RowBias[row:][:rows]
	}
	if f.ColumnBias != nil {
		columnBias = f.ColumnBias[column:][:columns]
	}
	c = c[row*crs+column:]
	_ = c[(rows-1)*crs+columns-1]
	if level != simd.Generic && finishAssembly(level, c, crs, rows, columns, rowBias, columnBias, f.ReLU) {
		return
	}
	for i := range rows {
		line := c[i*crs:][:columns]
		if rowBias != nil {
			for j := range line {
				line[j] += rowBias[i]
			}
		}
		for j, b := range columnBias {
			line[j] += b
		}
		if f.ReLU {
			for j, v := range line {
				if v < 0 {
					line[j] = 0
				}
			}
		}
	}
}

// check panics if an element would be outside of its slice, because the kernels don't check.
func (p *Product[T]) check() {
	_ = p.A.Data[(p.M-1)*p.A.Item+(p.K-1)*p.A.K]
	_ = p.B.Data[(p.N-1)*p.B.Item+(p.K-1)*p.B.K]
	_ = p.C[(p.M-1)*p.CRow+p.N-1]
}

// work returns the number of multiply-adds.
func (p *Product[T]) work() int { return p.M * p.N * p.K }

// empty computes products without elements or without terms, and reports whether p is one. It
// checks all others.
func (p *Product[T]) empty(level simd.Level) bool {
	if p.M == 0 || p.N == 0 {
		return true
	}
	if p.K > 0 {
		p.check()
		return false
	}
	for i := range p.M {
		if !p.Add {
			clear(p.C[i*p.CRow:][:p.N])
		}
	}
	if p.needed() {
		p.finish(level, p.C, p.CRow, 0, 0, p.M, p.N)
	}
	return true
}
