package plan

import "slices"

// Placement is the plan of a copy between two arrays of any strides: a loop over Dims, outermost
// first. Each step copies one element. Dimensions that have matching strides in both arrays are
// merged, so that a copy of consecutive elements is one dimension.
type Placement struct {
	Dims     []int
	Dst, Src []int // strides in elements
	From     int   // the element of src that the first step copies
}

// NewPlacement plans the copy of an array of the given shape. The strides are those of the two
// arrays, one for each dimension. A dimension of a negative stride is read from its end.
func NewPlacement(shape, dst, src []int) *Placement {
	m := meet(shape, dst, src)
	p := &Placement{Dims: m.Dims, Dst: m.Strides[0], Src: m.Strides[1]}
	for i, stride := range p.Src {
		p.From -= (p.Dims[i] - 1) * min(0, stride)
	}
	return p
}

// Strides are those of a row-major array.
func Strides(shape []int) []int { return AppendStrides(nil, shape) }

// AppendStrides appends them to a list, such as one on the caller's stack.
func AppendStrides(to, shape []int) []int {
	from := len(to)
	to = append(to, shape...)
	n := 1
	for i, d := range slices.Backward(shape) {
		to[from+i] = n
		n *= d
	}
	return to
}

// Row returns the length of a row, which is the innermost dimension, and its strides in dst and
// src.
func (p *Placement) Row() (n, dst, src int) {
	last := len(p.Dims) - 1
	if last < 0 {
		return 1, 0, 0
	}
	return p.Dims[last], p.Dst[last], p.Src[last]
}

// Offsets returns the offsets in dst and src at which a row starts. Rows are numbered in row-major
// order.
func (p *Placement) Offsets(row int) (dst, src int) { return p.walk(row, len(p.Dims)-1) }

// Count is the number of elements.
func (p *Placement) Count() int {
	n := 1
	for _, d := range p.Dims {
		n *= d
	}
	return n
}

// At returns the offsets of element i, in row-major order, in dst and src.
func (p *Placement) At(i int) (dst, src int) { return p.walk(i, len(p.Dims)) }

// walk returns the offsets of a step of the loop over the first n dimensions.
func (p *Placement) walk(row, n int) (dst, src int) {
	src = p.From
	for i := n - 1; i >= 0; i-- {
		j := row % p.Dims[i]
		row /= p.Dims[i]
		dst += j * p.Dst[i]
		src += j * p.Src[i]
	}
	return dst, src
}

// Broadcast maps the elements of a result to those of two arrays that broadcast after NumPy's
// rules. It is a Placement: Dst is the strides of the first array and Src of the second, 0 where an
// array repeats. Equal shapes are one dimension, and a row bias is two.
type Broadcast = Placement

// NewBroadcast plans the broadcast of shapes a and b to out, which must be their broadcast shape.
func NewBroadcast(out, a, b []int) *Broadcast {
	return NewPlacement(out, stretched(out, a), stretched(out, b))
}

// stretched is the strides with which an array of the given shape is read as if it had the shape
// out.
func stretched(out, shape []int) []int {
	strides := make([]int, len(out))
	lead, n := len(out)-len(shape), 1
	for i := len(shape) - 1; i >= 0; i-- {
		if shape[i] != 1 {
			strides[lead+i] = n
		}
		n *= shape[i]
	}
	return strides
}
