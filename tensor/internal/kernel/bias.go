package kernel

import "github.com/cistern-ml/cistern/tensor/internal/simd"

// AddRows sets dst[i,j] = x[i,j] + bias[j]; with relu, negative results become 0. Rows have
// len(bias) elements.
func AddRows[T Float](dst, x, bias []T, relu bool) {
	n := len(bias)
	switch {
	case n == 0:
	case len(dst) < 2*grainCheap:
		addRows(dst, x, bias, relu)
	default:
		split(len(dst)/n, max(1, grainCheap/n), func(lo, hi int) { addRows(dst[lo*n:hi*n], x[lo*n:hi*n], bias, relu) })
	}
}

func addRows[T Float](dst, x, bias []T, relu bool) {
	op := simd.Add
	if relu {
		op = simd.AddReLU
	}
	f, n := simd.BinaryOf[T](op), len(bias)
	for ; len(dst) > 0; dst, x = dst[n:], x[n:] {
		row, in := dst[:n], x[:n]
		if f != nil {
			zipPart(f, row, in, bias, 1, 1)
			continue
		}
		for j, b := range bias {
			v := in[j] + b
			if relu && v < 0 {
				v = 0
			}
			row[j] = v
		}
	}
}
