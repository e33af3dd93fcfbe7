package plan

// Meeting says how several arrays meet elementwise after NumPy's rules. Neighbouring dimensions that walk alike in all of
// them are merged.
type Meeting struct {
	Dims    []int   // of the result, outermost first
	Strides [][]int // of each array, in elements; 0 where the array repeats
}

// NewMeeting plans how arrays of the given shapes are read as if they had the shape out, which they broadcast to.
func NewMeeting(out []int, shapes ...[]int) *Meeting {
	all := make([][]int, len(shapes))
	for k, s := range shapes {
		all[k] = stretched(out, s)
	}
	return meet(out, all...)
}

// meet plans a loop over arrays with the given strides.
func meet(shape []int, all ...[]int) *Meeting {
	p := &Meeting{Strides: make([][]int, len(all))}
	for i, d := range shape {
		if d == 1 {
			continue
		}
		last := len(p.Dims) - 1
		merges := last >= 0
		for k := range all {
			merges = merges && p.Strides[k][last] == d*all[k][i]
		}
		if merges {
			p.Dims[last] *= d
		} else {
			p.Dims = append(p.Dims, d)
		}
		for k := range all {
			if merges {
				p.Strides[k][last] = all[k][i]
			} else {
				p.Strides[k] = append(p.Strides[k], all[k][i])
			}
		}
	}
	return p
}

// At is where the i-th element of the result, in row-major order, lies in array k.
func (p *Meeting) At(k, i int) (offset int) {
	for d := len(p.Dims) - 1; d >= 0; d-- {
		offset += i % p.Dims[d] * p.Strides[k][d]
		i /= p.Dims[d]
	}
	return offset
}
