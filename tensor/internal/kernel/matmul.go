package kernel

import (
	"math"

	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// MatMul is the plan of one product C[m,n] = op(A) op(B) over an inner dimension k, where op transposes what
// TransA and TransB say. A is stored [m,k], or [k,m] if TransA; B is stored [k,n], or [n,k] if TransB.
//
// gonum is fastest where both operands are read along rows (A plain, B transposed: dot products), about 26
// GFLOP/s in float32 on two cores; plain B reaches 17, transposed A 11, both 4. So an operand that lies the
// other way is turned first, through scratch memory, where that costs less than it gains. And it cuts the
// inner dimension into dot products of 64 when it splits the work itself; tiles of our own with long ones
// reach 42.
type MatMul struct {
	M, N, K        int
	TransA, TransB bool
	// Batch, if there is one, is of the factors' matrices (Dst: of A, Src: of B); those of C follow each other.
	Batch *Placement
}

// Below this inner dimension dot products are too short to win over plain B; below this number of rows
// turning B costs more than it gains.
const (
	shortInner = 24
	fewRows    = 12
)

// A tile of C, and the part of the inner dimension that it takes at a time: small enough for gonum to do it
// on one goroutine, its operands for the second-level cache.
const (
	tileRows, tileCols = 32, 64
	tileInner          = 2048
)

// rowsInner is how many rows of a plain B are added one after the other: rounding errors grow with it, and each part
// costs as much again as one row.
const rowsInner = 256

// turnA: a vector reads the same either way.
func (p MatMul) turnA() bool { return p.TransA && p.M > 1 && p.K > 1 }

func (p MatMul) turnB() bool {
	if p.N <= 1 || p.K <= 1 {
		return false
	}
	if p.TransB {
		return p.K < shortInner && p.M >= fewRows
	}
	return p.K >= shortInner && p.M >= fewRows
}

// plainB: B is multiplied in the form [k,n], by adding its rows.
func (p MatMul) plainB() bool {
	switch {
	case p.turnB():
		return p.TransB
	case p.N == 1 || p.K == 1:
		return p.N != 1
	}
	return !p.TransB
}

// Scratch is the number of elements of scratch memory that the plan needs.
func (p MatMul) Scratch() int {
	n := 0
	if p.plainB() && p.K > rowsInner {
		n += p.M * p.N
	}
	if p.turnA() {
		n += p.M * p.K
	}
	if p.turnB() {
		n += p.K * p.N
	}
	return n
}

// Multiply sets c to the product. scratch has p.Scratch() elements; nothing overlaps c. With an inner
// dimension of 0 c becomes 0.
func Multiply[T Float](p MatMul, c, a, b, scratch []T) {
	if len(c) == 0 {
		return
	}
	if p.K == 0 {
		clear(c)
		return
	}
	if p.turnA() {
		t := scratch[:p.M*p.K]
		Transpose(t, a, p.K, p.M)
		a, scratch = t, scratch[len(t):]
	}
	if p.turnB() {
		t := scratch[:p.K*p.N]
		if p.TransB {
			Transpose(t, b, p.N, p.K)
		} else {
			Transpose(t, b, p.K, p.N)
		}
		b, scratch = t, scratch[len(t):]
	}
	if p.plainB() {
		multiplyRows(p, c, a, b, scratch)
		return
	}
	tilesN := (p.N + tileCols - 1) / tileCols
	tiles := tilesN * ((p.M + tileRows - 1) / tileRows)
	split(tiles, max(1, grainFlops/(tileRows*tileCols*p.K)), func(lo, hi int) {
		for t := lo; t < hi; t++ {
			i, j := t/tilesN*tileRows, t%tilesN*tileCols
			m, n := min(tileRows, p.M-i), min(tileCols, p.N-j)
			for k := 0; k < p.K; k += tileInner {
				gemm(blas.Trans, m, n, min(tileInner, p.K-k), a[i*p.K+k:], p.K, b[j*p.K+k:], p.K, T(min(k, 1)), c[i*p.N+j:], p.N)
			}
		}
	})
}

// multiplyRows is the product with a plain B.
func multiplyRows[T Float](p MatMul, c, a, b, scratch []T) {
	for k := 0; k < p.K; k += rowsInner {
		part := c
		if k > 0 {
			part = scratch[:len(c)]
		}
		inner := min(rowsInner, p.K-k)
		gemm(blas.NoTrans, p.M, p.N, inner, a[k:], p.K, b[k*p.N:], p.N, 0, part, p.N)
		if k > 0 {
			addLoop(c, c, part, 1, 1)
		}
	}
	addSkipped(p, c, a, b)
}

// addSkipped adds what gonum leaves out of a product with a plain B: it skips the rows of B whose factor is 0, and 0
// times an infinity or NaN is NaN. Looking at B once costs little beside many rows; beside few, looking at a skipped
// row costs less than skipping it saved.
func addSkipped[T Float](p MatMul, c, a, b []T) {
	if p.M >= fewRows && finite(b) {
		return
	}
	for k := range p.K {
		i := 0
		for i < p.M && a[i*p.K+k] != 0 {
			i++
		}
		row := b[k*p.N : (k+1)*p.N]
		if i == p.M || finite(row) {
			continue
		}
		for ; i < p.M; i++ {
			if f := a[i*p.K+k]; f == 0 {
				for j, v := range row {
					c[i*p.N+j] += f * v
				}
			}
		}
	}
}

// finite reports whether no element is an infinity or NaN. It may be wrong about huge elements, never about others.
func finite[T Float](row []T) bool {
	d := float64(normSquared(row))
	return !math.IsNaN(d) && !math.IsInf(d, 0)
}

// gemm is gonum's: C = A op(B) + beta C.
func gemm[T Float](op blas.Transpose, m, n, k int, a []T, lda int, b []T, ldb int, beta T, c []T, ldc int) {
	var impl gonum.Implementation
	switch c := any(c).(type) {
	case []float32:
		impl.Sgemm(blas.NoTrans, op, m, n, k, 1, any(a).([]float32), lda, any(b).([]float32), ldb, float32(beta), c, ldc)
	case []float64:
		impl.Dgemm(blas.NoTrans, op, m, n, k, 1, any(a).([]float64), lda, any(b).([]float64), ldb, float64(beta), c, ldc)
	}
}

// normSquared is the sum of the squares of x, for its vector instructions.
func normSquared[T Float](x []T) T {
	var impl gonum.Implementation
	switch x := any(x).(type) {
	case []float32:
		return T(impl.Sdot(len(x), x, 1, x, 1))
	case []float64:
		return T(impl.Ddot(len(x), x, 1, x, 1))
	}
	return 0
}
