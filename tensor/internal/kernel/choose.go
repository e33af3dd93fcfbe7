package kernel

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

// at is where the i-th element of the result, in row-major order, lies in array k.
func (p *Meeting) at(k, i int) (offset int) {
	for d := len(p.Dims) - 1; d >= 0; d-- {
		offset += i % p.Dims[d] * p.Strides[k][d]
		i /= p.Dims[d]
	}
	return offset
}

// Choose sets dst to a where cond is not 0, and to b elsewhere; a or b may be nil, for zeros. p is of cond, a and b.
func Choose[C uint8 | int32 | int64, E uint8 | uint16 | uint32 | uint64](dst []E, cond []C, a, b []E, p *Meeting) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			from, k := b, 2
			if cond[p.at(0, i)] != 0 {
				from, k = a, 1
			}
			var v E
			if from != nil {
				v = from[p.at(k, i)]
			}
			dst[i] = v
		}
	})
}

// ExtremeGrad sets dst to the gradient of a, where dy is that of the maximum of a and b or, unless greatest, of their
// minimum: all of dy where a was taken, half where a and b are equal. Beside a NaN it is all of dy. p is of a and b.
func ExtremeGrad[T Float](greatest bool, dst, dy, a, b []T, p *Meeting) {
	split(len(dst), grainMath, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			x, y, v := a[p.at(0, i)], b[p.at(1, i)], dy[i]
			switch {
			case x == y:
				v /= 2
			case greatest && x < y, !greatest && x > y:
				v = 0
			}
			dst[i] = v
		}
	})
}
