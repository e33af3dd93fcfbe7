package kernel

// Broadcast says how two arrays meet elementwise after NumPy's rules: which element of each belongs to an
// element of the result. It is a Placement, in which equal shapes are one dimension and a row bias is two; its strides
// are those of the two arrays, 0 where an array repeats.
type Broadcast Placement

// NewBroadcast plans the broadcast of shapes a and b to out, which must be their broadcast shape.
func NewBroadcast(out, a, b []int) *Broadcast {
	return (*Broadcast)(NewPlacement(out, stretched(out, a), stretched(out, b)))
}

// Strides are the dimensions of the result, outermost first, and the strides of a and b in elements, 0 where the array
// repeats.
func (p *Broadcast) Strides() (dims, a, b []int) { return p.Dims, p.Dst, p.Src }

// offsets is where a row (everything but the innermost dimension) of the result starts in a and b.
func (p *Broadcast) offsets(row int) (oa, ob int) { return (*Placement)(p).offsets(row) }

// stretched is the strides with which an array of the given shape is read as if it had the shape out.
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
