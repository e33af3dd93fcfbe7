package strided

import (
	"errors"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/tensor/internal/launch"
)

// ErrDims is the error for operands with more dimensions than kernels take.
var ErrDims = errors.New("more than 8 dimensions that can't be merged")

// Array describes elements in device memory.
type Array struct {
	Ptr     device.Ptr // of the first element
	Size    int        // of an element in bytes
	Dims    []int      // outermost first; at least 1 each
	Strides []int      // in elements, at least 0; 0 repeats
}

// Dense returns an array of contiguous elements.
func Dense(p device.Ptr, size int, dims ...int) Array {
	strides, n := make([]int, len(dims)), 1
	for i := len(dims) - 1; i >= 0; i-- {
		strides[i] = n
		n *= dims[i]
	}
	return Array{p, size, dims, strides}
}

// Len returns the number of elements.
func (a Array) Len() int { return product(a.Dims) }

// IsDense reports whether the elements are contiguous.
func (a Array) IsDense() bool {
	n := 1
	for i := len(a.Dims) - 1; i >= 0; i-- {
		if a.Dims[i] != 1 && a.Strides[i] != n {
			return false
		}
		n *= a.Dims[i]
	}
	return true
}

// Span returns the memory from the first element to the end of the last.
func (a Array) Span() device.Range {
	last := 0
	for i, d := range a.Dims {
		last += (d - 1) * a.Strides[i]
	}
	return device.Range{Ptr: a.Ptr, Bytes: int64(last+1) * int64(a.Size)}
}

// Overlaps reports whether the spans have a byte in common.
func (a Array) Overlaps(b Array) bool {
	s, t := a.Span(), b.Span()
	return s.Ptr < t.Ptr+device.Ptr(t.Bytes) && t.Ptr < s.Ptr+device.Ptr(s.Bytes)
}

// Matches reports whether equal indices have the same memory in both arrays.
func (a Array) Matches(b Array) bool {
	if a.Ptr != b.Ptr || len(a.Dims) != len(b.Dims) {
		return false
	}
	for i, d := range a.Dims {
		if d != b.Dims[i] || d != 1 && a.Strides[i] != b.Strides[i] {
			return false
		}
	}
	return true
}

// Drop returns the array at index i of a dimension, without that dimension.
func (a Array) Drop(dim, i int) Array {
	a.Ptr += device.Ptr(i * a.Strides[dim] * a.Size)
	a.Dims, a.Strides = without(a.Dims, dim), without(a.Strides, dim)
	return a
}

// Part returns the indices [from, from+n) of a dimension.
func (a Array) Part(dim, from, n int) Array {
	a.Ptr += device.Ptr(from * a.Strides[dim] * a.Size)
	a.Dims = append([]int(nil), a.Dims...)
	a.Dims[dim] = n
	return a
}

// Insert returns the array with an additional dimension, along which it repeats.
func (a Array) Insert(dim, n int) Array {
	a.Dims, a.Strides = with(a.Dims, dim, n), with(a.Strides, dim, 0)
	return a
}

// Permute returns the array with its dimensions in another order.
func (a Array) Permute(order ...int) Array {
	dims, strides := make([]int, len(order)), make([]int, len(order))
	for i, d := range order {
		dims[i], strides[i] = a.Dims[d], a.Strides[d]
	}
	a.Dims, a.Strides = dims, strides
	return a
}

func without(s []int, i int) []int { return append(append([]int(nil), s[:i]...), s[i+1:]...) }

func with(s []int, i, v int) []int { return append(append(append([]int(nil), s[:i]...), v), s[i:]...) }

func product(dims []int) int {
	n := 1
	for _, d := range dims {
		n *= d
	}
	return n
}

// operands is the number of arrays in a loop: the destination and two sources.
const operands = 3

// plan is a loop over up to three arrays of the same dimensions.
type plan struct {
	dims    []int
	strides [operands][]int
}

// newPlan merges neighbouring dimensions with matching strides in all arrays, so that dense arrays
// have only one dimension.
func newPlan(dst Array, reads ...Array) (p plan, err error) {
	all := append([]Array{dst}, reads...)
	for i, d := range dst.Dims {
		if d == 1 {
			continue
		}
		k := len(p.dims) - 1
		merge := k >= 0
		for j, a := range all {
			merge = merge && p.strides[j][k] == d*a.Strides[i]
		}
		if merge {
			p.dims[k] *= d
		} else {
			p.dims = append(p.dims, d)
			k++
		}
		for j := range operands {
			s := 0
			if j < len(all) {
				s = all[j].Strides[i]
			}
			if merge {
				p.strides[j][k] = s
			} else {
				p.strides[j] = append(p.strides[j], s)
			}
		}
	}
	if len(p.dims) > launch.MaxDims {
		return p, ErrDims
	}
	return p, nil
}

// each calls f with the indices of every element, in row-major order.
func (p plan) each(f func(dst, a, b int)) {
	n := product(p.dims)
	inner, run := len(p.dims)-1, 1
	if inner >= 0 {
		run = p.dims[inner]
	}
	for first := 0; first < n; first += run {
		var at [operands]int
		for d, rest := inner-1, first/run; d >= 0; d-- {
			for j := range at {
				at[j] += rest % p.dims[d] * p.strides[j][d]
			}
			rest /= p.dims[d]
		}
		if inner < 0 {
			f(0, 0, 0)
			return
		}
		for range run {
			f(at[0], at[1], at[2])
			for j := range at {
				at[j] += p.strides[j][inner]
			}
		}
	}
}
