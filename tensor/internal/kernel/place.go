package kernel

import "slices"

// Placement says how elements move between two arrays of any strides: a loop over dims, outermost first, at whose every
// step one element goes from an offset of the source to one of the destination. Dimensions that walk alike in both are
// merged, so that a copy of consecutive elements is one dimension.
type Placement struct {
	Dims     []int
	Dst, Src []int // strides in elements
}

// NewPlacement plans the copy of an array of the given shape. The strides are those of the two arrays, one for each
// dimension.
func NewPlacement(shape, dst, src []int) *Placement {
	m := meet(shape, dst, src)
	return &Placement{m.Dims, m.Strides[0], m.Strides[1]}
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

// Place copies n elements from src to dst, which must not overlap.
func Place[T any](dst, src []T, n int, p *Placement) {
	cols, sd, ss := p.row()
	split(n/cols, max(1, grainCheap/cols), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			od, os := p.offsets(row)
			if sd == 1 && ss == 1 {
				copy(dst[od:od+cols], src[os:os+cols])
				continue
			}
			for i := range cols {
				dst[od+i*sd] = src[os+i*ss]
			}
		}
	})
}

// row is the length of a row (the innermost dimension), and the strides in dst and src.
func (p *Placement) row() (n, dst, src int) {
	last := len(p.Dims) - 1
	if last < 0 {
		return 1, 0, 0
	}
	return p.Dims[last], p.Dst[last], p.Src[last]
}

// offsets is where a row (everything but the innermost dimension) starts in dst and src.
func (p *Placement) offsets(row int) (dst, src int) { return p.walk(row, len(p.Dims)-1) }

// Count is the number of elements.
func (p *Placement) Count() int {
	n := 1
	for _, d := range p.Dims {
		n *= d
	}
	return n
}

// At is where an element is in dst and src.
func (p *Placement) At(i int) (dst, src int) { return p.walk(i, len(p.Dims)) }

// walk is where the i-th step of a loop over the first n dimensions is.
func (p *Placement) walk(row, n int) (dst, src int) {
	for i := n - 1; i >= 0; i-- {
		j := row % p.Dims[i]
		row /= p.Dims[i]
		dst += j * p.Dst[i]
		src += j * p.Src[i]
	}
	return dst, src
}
