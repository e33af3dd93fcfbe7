package kernel

// Broadcast says how two arrays meet elementwise after NumPy's rules: which element of each belongs to an
// element of the result. It is a Placement, in which equal shapes are one dimension and a row bias is two; its strides
// are those of the two arrays, 0 where an array repeats.
type Broadcast = Placement

// NewBroadcast plans the broadcast of shapes a and b to out, which must be their broadcast shape.
func NewBroadcast(out, a, b []int) *Broadcast {
	return NewPlacement(out, stretched(out, a), stretched(out, b))
}

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
