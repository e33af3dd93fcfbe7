package autograd_test

import (
	"math"
	"slices"
)

// array is a value of the naive reference, which loops over indices in float64, and shares no code
// with the kernels.
type array struct {
	shape []int
	data  []float64
}

func zeros(shape ...int) array {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return array{slices.Clone(shape), make([]float64, n)}
}

// each calls f with every index of the shape, in row-major order.
func each(shape []int, f func(i int, index []int)) {
	n := len(zeros(shape...).data)
	index := make([]int, len(shape))
	for i := range n {
		rest := i
		for d := len(shape) - 1; d >= 0; d-- {
			index[d], rest = rest%shape[d], rest/shape[d]
		}
		f(i, index)
	}
}

// at is the element at an index of a shape that a broadcasts to.
func (a array) at(index []int) float64 { return a.data[a.offset(index)] }

func (a array) offset(index []int) int {
	at, lead := 0, len(index)-len(a.shape)
	for d, size := range a.shape {
		at *= size
		if size > 1 {
			at += index[lead+d]
		}
	}
	return at
}

func (a array) each(f func(float64) float64) array {
	y := zeros(a.shape...)
	for i, v := range a.data {
		y.data[i] = f(v)
	}
	return y
}

// zip is false if the shapes don't broadcast.
func zip(a, b array, f func(x, y float64) float64) (array, bool) {
	rank := max(len(a.shape), len(b.shape))
	shape := make([]int, rank)
	for d := range rank {
		size := func(s []int) int {
			if i := d - rank + len(s); i >= 0 {
				return s[i]
			}
			return 1
		}
		m, n := size(a.shape), size(b.shape)
		switch {
		case m == n || n == 1:
			shape[d] = m
		case m == 1:
			shape[d] = n
		default:
			return array{}, false
		}
	}
	y := zeros(shape...)
	each(shape, func(i int, index []int) { y.data[i] = f(a.at(index), b.at(index)) })
	return y, true
}

// sum adds over the axes, all of them if there are none, and divides by the number of terms for a
// mean.
func (a array) sum(axes []int, mean bool) array {
	var without []int
	dropped := func(d int) bool {
		return len(axes) == 0 || slices.Contains(axes, d) || slices.Contains(axes, d-len(a.shape))
	}
	terms := 1
	for d, size := range a.shape {
		if dropped(d) {
			terms *= size
		} else {
			without = append(without, size)
		}
	}
	y := zeros(without...)
	each(a.shape, func(i int, index []int) {
		var to []int
		for d, j := range index {
			if !dropped(d) {
				to = append(to, j)
			}
		}
		y.data[y.offset(to)] += a.data[i]
	})
	if mean {
		return y.each(func(v float64) float64 { return v / float64(terms) })
	}
	return y
}

// factor is an array as matrices: a vector is one row, or one column.
type factor struct {
	array
	trans      bool
	batch      []int
	rows, cols int
}

// factorOf is false for an array that is not a factor.
func factorOf(a array, trans, row bool) (factor, bool) {
	f := factor{array: a, trans: trans}
	switch n := len(a.shape); {
	case n == 0 || n == 1 && trans:
		return f, false
	case n == 1 && row:
		f.array.shape = []int{1, a.shape[0]}
	case n == 1:
		f.array.shape = []int{a.shape[0], 1}
	}
	n := len(f.shape) - 2
	f.batch, f.rows, f.cols = f.shape[:n], f.shape[n], f.shape[n+1]
	if trans {
		f.rows, f.cols = f.cols, f.rows
	}
	return f, true
}

func (f factor) element(batch []int, i, j int) float64 {
	if f.trans {
		i, j = j, i
	}
	return f.at(append(slices.Clone(batch[len(batch)-len(f.batch):]), i, j))
}

// matmul is after torch.matmul's rules, and false if the shapes are not those of a product.
func matmul(a, b array, transA, transB bool) (array, bool) {
	left, ok := factorOf(a, transA, true)
	right, ok2 := factorOf(b, transB, false)
	if !ok || !ok2 || left.cols != right.rows {
		return array{}, false
	}
	batch, ok := zip(zeros(left.batch...), zeros(right.batch...), math.Max)
	if !ok {
		return array{}, false
	}
	n := len(batch.shape)
	y := zeros(append(slices.Clone(batch.shape), left.rows, right.cols)...)
	each(y.shape, func(i int, index []int) {
		for k := range left.cols {
			y.data[i] += left.element(index[:n], index[n], k) * right.element(index[:n], k, index[n+1])
		}
	})
	if len(b.shape) == 1 {
		y.shape = y.shape[:n+1]
	}
	if len(a.shape) == 1 {
		y.shape = slices.Delete(y.shape, n, n+1)
	}
	return y, true
}

func (a array) transposedIf(yes bool) array {
	if !yes {
		return a
	}
	y := zeros(a.shape[1], a.shape[0])
	each(y.shape, func(i int, index []int) { y.data[i] = a.at([]int{index[1], index[0]}) })
	return y
}

// softmax is of the rows along the last dimension. A scalar is a row.
func (a array) softmax() array {
	y, n := zeros(a.shape...), 1
	if rank := len(a.shape); rank > 0 {
		n = a.shape[rank-1]
	}
	for from := 0; from < len(a.data); from += n {
		total := 0.0
		for _, v := range a.data[from : from+n] {
			total += math.Exp(v)
		}
		for j, v := range a.data[from : from+n] {
			y.data[from+j] = math.Exp(v) / total
		}
	}
	return y
}

// crossEntropy is the mean of -log softmax at the labels.
func (a array) crossEntropy(labels []int32) array {
	p := a.softmax()
	y := zeros()
	for row, label := range labels {
		y.data[0] -= math.Log(p.at([]int{row, int(label)})) / float64(len(labels))
	}
	return y
}

// transposed is a with two dimensions exchanged.
func (a array) transposed(d0, d1 int) array {
	n := len(a.shape)
	d0, d1 = (d0+n)%n, (d1+n)%n
	shape := slices.Clone(a.shape)
	shape[d0], shape[d1] = shape[d1], shape[d0]
	y := zeros(shape...)
	each(shape, func(i int, index []int) {
		from := slices.Clone(index)
		from[d0], from[d1] = from[d1], from[d0]
		y.data[i] = a.at(from)
	})
	return y
}
