package reference

// SumTo sums x over the leading dimensions that shape lacks and those of size 1 in shape, and
// divides by divisor.
func SumTo(x Array, shape []int, divisor float64) Result {
	r := newResult(shape)
	sums := make([]Sum, len(r.Data))
	each(x.Shape, func(i int, index []int) { sums[place(shape, index)].Add(x.Data[i]) })
	for i := range sums {
		r.Data[i], r.Size[i] = sums[i].Value()/divisor, sums[i].Size()/divisor
	}
	return r
}

// BroadcastTo repeats x.
func BroadcastTo(x Array, shape []int) Result {
	r := newResult(shape)
	each(shape, func(i int, index []int) { r.Data[i] = x.Data[place(x.Shape, index)] })
	return r
}

// MatMul returns the product of a and b, each of which may be transposed first.
func MatMul(a, b Array, transA, transB bool) Result {
	at := func(x Array, trans bool, i, j int) float64 {
		if trans {
			i, j = j, i
		}
		return x.Data[i*x.Shape[1]+j]
	}
	m, k, n := a.Shape[0], a.Shape[1], b.Shape[1]
	if transA {
		m, k = k, m
	}
	if transB {
		n = b.Shape[0]
	}
	r := newResult([]int{m, n})
	for i := range m {
		for j := range n {
			var sum Sum
			for l := range k {
				sum.AddProduct(at(a, transA, i, l), at(b, transB, l, j))
			}
			r.Data[i*n+j], r.Size[i*n+j] = sum.Value(), sum.Size()
		}
	}
	return r
}

// Transpose transposes a matrix.
func Transpose(x Array) Result {
	r := newResult([]int{x.Shape[1], x.Shape[0]})
	each(r.Shape, func(i int, index []int) { r.Data[i] = x.Data[index[1]*x.Shape[1]+index[0]] })
	return r
}
