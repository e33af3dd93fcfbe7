// Package reference computes what the operations of package tensor should: with plain loops over float64, one index
// at a time, and sums with more digits than float64. It shares no code with the kernels, and it is for tests.
//
// Every result says how large the terms were that it is made of, because that is what rounding errors are relative
// to.
package reference

// Array has its elements in row-major order. A scalar has no dimensions.
type Array struct {
	Shape []int
	Data  []float64
}

// Result is what an operation should give.
type Result struct {
	Array
	Size []float64 // for each element the sum of the magnitudes of its terms
}

// elements is the number of elements of a shape.
func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// newResult has room for a shape's elements.
func newResult(shape []int) Result {
	n := elements(shape)
	return Result{Array{shape, make([]float64, n)}, make([]float64, n)}
}

// each calls f with every index of the shape, in row-major order, and its place in that order.
func each(shape []int, f func(place int, index []int)) {
	index := make([]int, len(shape))
	for place := range elements(shape) {
		rest := place
		for d := len(shape) - 1; d >= 0; d-- {
			index[d] = rest % shape[d]
			rest /= shape[d]
		}
		f(place, index)
	}
}

// place is where the element that index of a larger shape meets lies in an array of the given shape: a dimension of 1
// meets every index, and missing ones in front do.
func place(shape, index []int) int {
	at := 0
	for d, n := range shape {
		i := index[len(index)-len(shape)+d]
		if n == 1 {
			i = 0
		}
		at = at*n + i
	}
	return at
}
