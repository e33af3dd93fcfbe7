package kernel

import "gonum.org/v1/gonum/blas"

// product is C = A Bᵀ, or C += A Bᵀ if add, on this goroutine: A is [m,k], B [n,k], C [m,n], with rows lda, ldb and ldc
// elements apart.
func product[T Float](m, n, k int, a []T, lda int, b []T, ldb int, add bool, c []T, ldc int) {
	for i := 0; i < m; i += tileRows {
		for j := 0; j < n; j += tileCols {
			beta := T(0)
			if add {
				beta = 1
			}
			for l := 0; l < k; l += tileInner {
				gemm(blas.Trans, min(tileRows, m-i), min(tileCols, n-j), min(tileInner, k-l), a[i*lda+l:], lda, b[j*ldb+l:], ldb, beta, c[i*ldc+j:], ldc)
				beta = 1
			}
		}
	}
}

// plainProduct is product for B [k,n], which is best where k is short. gonum leaves rows of B out whose factor is 0: beside an
// infinity or NaN in B this does the product in plain Go.
func plainProduct[T Float](m, n, k int, a []T, lda int, b []T, ldb int, add bool, c []T, ldc int) {
	beta := T(0)
	if add {
		beta = 1
	}
	all := true
	for l := 0; l < k && all; l++ {
		all = finite(b[l*ldb:][:n])
	}
	if all {
		for i := 0; i < m; i += tileRows {
			for j := 0; j < n; j += 2 * tileCols {
				gemm(blas.NoTrans, min(tileRows, m-i), min(2*tileCols, n-j), k, a[i*lda:], lda, b[j:], ldb, beta, c[i*ldc+j:], ldc)
			}
		}
		return
	}
	for i := range m {
		row := c[i*ldc:][:n]
		if !add {
			clear(row)
		}
		for l, f := range a[i*lda:][:k] {
			for j, v := range b[l*ldb:][:n] {
				row[j] += f * v
			}
		}
	}
}

// transposeTile sets dst [cols, rows] to the transpose of src, whose rows are ld elements apart, on this goroutine.
func transposeTile[T Float](dst, src []T, rows, cols, ld int) {
	for i := range rows {
		for j, v := range src[i*ld:][:cols] {
			dst[j*rows+i] = v
		}
	}
}
