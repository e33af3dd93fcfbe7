package plan

// Dim is a dimension of an array: its size, and the distance in elements between neighbours along
// it.
type Dim struct{ Size, Stride int }

// Reduction is the plan of a sum over some dimensions of an array: the dimensions that are kept and
// those that are summed, each outermost first. Neighbouring dimensions of one sort are merged, so
// that kept and summed dimensions alternate.
type Reduction struct {
	Kept, Summed []Dim
	InnerSummed  bool // the innermost dimension is summed

	room [2][2]Dim // of the lists, if it is enough
}

// NewReduction plans the sum of an array of shape in to an array of shape out, which in is a
// broadcast of: the dimensions that out lacks in front, or where it has 1, are summed.
func NewReduction(in, out []int) *Reduction {
	p := &Reduction{}
	p.Kept, p.Summed = p.room[0][:0], p.room[1][:0]
	lead := len(in) - len(out)
	stride := 1
	for _, d := range in {
		stride *= d
	}
	first := true
	for i, d := range in {
		if d == 1 {
			continue
		}
		stride /= max(1, d)
		summed := i < lead || out[i-lead] == 1
		list := &p.Kept
		if summed {
			list = &p.Summed
		}
		if last := len(*list) - 1; !first && summed == p.InnerSummed {
			(*list)[last] = Dim{(*list)[last].Size * d, stride}
		} else {
			*list = append(*list, Dim{d, stride})
		}
		p.InnerSummed, first = summed, false
	}
	return p
}

// Offset returns the offset in the array of the i-th combination of indices of dims, in row-major
// order.
func Offset(dims []Dim, i int) (offset int) {
	for d := len(dims) - 1; d >= 0; d-- {
		offset += i % dims[d].Size * dims[d].Stride
		i /= dims[d].Size
	}
	return offset
}
