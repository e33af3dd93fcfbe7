// Package reference computes the expected results of the operations of package tensor, for tests.
// It uses plain loops over float64, one index at a time, and sums with more digits than float64. It
// shares no code with the kernels.
//
// Every [Result] includes the magnitude of the terms of each element, because rounding errors are
// relative to it.
package reference

// Array has its elements in row-major order. A scalar has no dimensions.
type Array struct {
	Shape []int
	Data  []float64
}

// Result is the expected result of an operation.
type Result struct {
	Array
	Size []float64 // for each element, the sum of the magnitudes of its terms
}

// elements returns the number of elements of a shape.
func elements(shape []int) int {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return n
}

// newResult returns a result of zeros.
func newResult(shape []int) Result {
	n := elements(shape)
	return Result{Array{shape, make([]float64, n)}, make([]float64, n)}
}

// each calls f with every index of the shape, in row-major order, and the index's position in that
// order.
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

// place returns the position, in an array of the given shape, of the element at index of a larger
// shape to which the array is broadcast.
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
