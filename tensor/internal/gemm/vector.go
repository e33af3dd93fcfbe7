package gemm

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// vectorProduct is a product with a vector. It reads the other factor once, in memory order, and
// packs nothing. If the matrix's rows lie along the inner dimension, each element is a product of
// two rows. Otherwise the result is a sum of rows, each times an element of the vector.
type vectorProduct[T Float] struct {
	dots       bool
	n, k       int // lengths of the result and of each sum
	matrix     []T
	ld         int // between the starts of the matrix's rows
	vector     []T
	stride     int // between the vector's elements
	out        []T
	outStride  int
	add        bool
	level      simd.Level
	finish     Finish[T]
	unit, size int // elements of the result per unit; bytes of an element
}

// asVector returns the product as one with a vector. It returns false for other products, and for
// strides that the kernels don't take.
func (p *Product[T]) asVector(mc *machine) (v vectorProduct[T], ok bool) {
	if (p.M != 1 && p.N != 1) || p.K == 1 {
		return v, false
	}
	matrix, vector := p.A, p.B
	v = vectorProduct[T]{n: p.M, k: p.K, out: p.C, outStride: p.CRow, add: p.Add, level: mc.level, finish: p.Finish, size: mc.size}
	if p.N == 1 {
		// The rest of v treats the result as a row.
		v.finish.RowBias, v.finish.ColumnBias = p.ColumnBias, p.RowBias
		if p.ColumnBias != nil && p.M > 1 || p.RowBias != nil && p.CRow != 1 || p.CRow != 1 && p.needed() {
			return v, false
		}
	} else {
		matrix, vector = p.B, p.A
		v.n, v.outStride = p.N, 1
	}
	v.matrix, v.vector, v.stride = matrix.Data, vector.Data, vector.K
	switch {
	case matrix.K == 1 && vector.K == 1:
		v.dots, v.ld = true, matrix.Item
		v.unit = max(1, vectorUnit/v.k)
	case matrix.Item == 1 && v.outStride == 1:
		v.ld = matrix.K
		v.unit = vectorColumns
	default:
		return v, false
	}
	return v, true
}

const (
	vectorUnit    = 64 << 10 // elements of the matrix in a unit of dots, or a call of assembly
	vectorColumns = 1 << 10  // columns in a unit of sums of rows
	vectorDepth   = 4 << 10  // depth of one call; longer rows are added in parts
)

// Units implements workers.Job.
func (v *vectorProduct[T]) Units(int) int { return ceil(v.n, v.unit) }

// Run implements workers.Job.
func (v *vectorProduct[T]) Run(_, unit int) {
	from := unit * v.unit
	n := min(v.unit, v.n-from)
	out := v.out[from*v.outStride:]
	_ = out[(n-1)*v.outStride]
	if v.dots {
		_ = v.matrix[(from+n-1)*v.ld+v.k-1]
		for k := 0; k < v.k; k += vectorDepth {
			depth := min(vectorDepth, v.k-k)
			step := vectorUnit / depth
			for i := 0; i < n; i += step {
				v.sumRows(out[i*v.outStride:], v.matrix[(from+i)*v.ld+k:], min(step, n-i), v.vector[k:], depth, v.add || k > 0)
			}
		}
	} else {
		if !v.add {
			clear(out[:n])
		}
		_ = v.matrix[(v.k-1)*v.ld+from+n-1]
		step := roundUp(vectorUnit/n, 4)
		for k := 0; k < v.k; k += step {
			v.addRows(out[:n], v.vector[k*v.stride:], v.matrix[k*v.ld+from:], min(step, v.k-k))
		}
	}
	if v.finish.needed() {
		v.finish.finish(v.level, v.out, v.n, 0, from, 1, n)
	}
}

// sumRows sets elements of out to the products of the matrix's rows and the vector, or adds them.
func (v *vectorProduct[T]) sumRows(out, matrix []T, rows int, vector []T, k int, add bool) {
	if v.level == simd.AVX2 || v.level == simd.AVX512 {
		dotsAssembly(v.level, v.size, bytes(&out[0]), v.outStride, bytes(&matrix[0]), v.ld, rows, bytes(&vector[0]), k, add)
		return
	}
	for i := range rows {
		var sums [4]T
		row, x := matrix[i*v.ld:][:k], vector[:k]
		for ; len(row) >= 4 && len(x) >= 4; row, x = row[4:], x[4:] {
			sums[0] += row[0] * x[0]
			sums[1] += row[1] * x[1]
			sums[2] += row[2] * x[2]
			sums[3] += row[3] * x[3]
		}
		for j := range row {
			sums[0] += row[j] * x[j]
		}
		setOrAdd(&out[i*v.outStride], (sums[0]+sums[1])+(sums[2]+sums[3]), add)
	}
}

// addRows adds rows of the matrix, times elements of the vector, to out.
func (v *vectorProduct[T]) addRows(out, vector, matrix []T, rows int) {
	if v.level == simd.AVX2 || v.level == simd.AVX512 {
		addRowsAssembly(v.level, v.size, bytes(&out[0]), len(out), bytes(&vector[0]), v.stride, bytes(&matrix[0]), v.ld, rows)
		return
	}
	for k := range rows {
		f := vector[k*v.stride]
		for j, x := range matrix[k*v.ld:][:len(out)] {
			out[j] += f * x
		}
	}
}
