package reference

// matrix returns the matrix that an index of the broadcast batch refers to.
func (a Array) matrix(batch []int) Array {
	n := len(a.Shape) - 2
	size := a.Shape[n] * a.Shape[n+1]
	from := place(a.Shape[:n], batch) * size
	return Array{a.Shape[n:], a.Data[from : from+size]}
}

// BatchMatMul is MatMul for each matrix of a batch to which both factors are broadcast.
func BatchMatMul(a, b Array, batch []int, transA, transB bool) Result {
	r := Result{}
	m, n := 0, 0
	size := func(x Array, d int, trans bool) int {
		if trans {
			d = 1 - d
		}
		return x.Shape[len(x.Shape)-2+d]
	}
	m, n = size(a, 0, transA), size(b, 1, transB)
	r.Shape = append(append([]int{}, batch...), m, n)
	each(batch, func(_ int, index []int) {
		one := MatMul(a.matrix(index), b.matrix(index), transA, transB)
		r.Data, r.Size = append(r.Data, one.Data...), append(r.Size, one.Size...)
	})
	return r
}
