package kernel

// Broadcast says how two arrays meet elementwise after NumPy's rules: which element of each belongs to an
// element of the result. Neighbouring dimensions that walk alike are merged, so equal shapes are one
// dimension, and a row bias is two.
type Broadcast struct {
	dims []int // of the result, outermost first
	a, b []int // strides in elements; 0 where the array repeats
}

// NewBroadcast plans the broadcast of shapes a and b to out, which must be their broadcast shape.
func NewBroadcast(out, a, b []int) *Broadcast {
	sa, sb := stretched(out, a), stretched(out, b)
	p := &Broadcast{}
	for i, d := range out {
		if d == 1 {
			continue
		}
		if k := len(p.dims) - 1; k >= 0 && p.a[k] == d*sa[i] && p.b[k] == d*sb[i] {
			p.dims[k] *= d
			p.a[k], p.b[k] = sa[i], sb[i]
			continue
		}
		p.dims, p.a, p.b = append(p.dims, d), append(p.a, sa[i]), append(p.b, sb[i])
	}
	return p
}

// Strides are the dimensions of the result, outermost first, and the strides of a and b in elements, 0 where the array
// repeats.
func (p *Broadcast) Strides() (dims, a, b []int) { return p.dims, p.a, p.b }

// offsets is where a row (everything but the innermost dimension) of the result starts in a and b.
func (p *Broadcast) offsets(row int) (oa, ob int) {
	for i := len(p.dims) - 2; i >= 0; i-- {
		j := row % p.dims[i]
		row /= p.dims[i]
		oa += j * p.a[i]
		ob += j * p.b[i]
	}
	return oa, ob
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
