package kernel

// AddRows sets dst[i,j] = x[i,j] + bias[j], and then what is negative to 0 if relu. Rows have len(bias)
// elements.
func AddRows[T Float](dst, x, bias []T, relu bool) {
	n := len(bias)
	if n == 0 {
		return
	}
	split(len(dst)/n, max(1, grainCheap/n), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			row, in := dst[i*n:][:n], x[i*n:][:n]
			for j, b := range bias {
				v := in[j] + b
				if relu && v < 0 {
					v = 0
				}
				row[j] = v
			}
		}
	})
}
