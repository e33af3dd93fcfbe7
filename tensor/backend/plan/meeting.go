package plan

// Meeting maps the elements of a result to those of several arrays that broadcast after NumPy's
// rules. Neighbouring dimensions that have matching strides in all arrays are merged.
type Meeting struct {
	Dims    []int   // of the result, outermost first
	Strides [][]int // of each array, in elements; 0 where the array repeats
}

// NewMeeting plans how arrays of the given shapes are read as if they had the shape out, which they
// broadcast to.
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

// At returns the offset in array k of element i of the result, in row-major order.
func (p *Meeting) At(k, i int) (offset int) {
	for d := len(p.Dims) - 1; d >= 0; d-- {
		offset += i % p.Dims[d] * p.Strides[k][d]
		i /= p.Dims[d]
	}
	return offset
}
