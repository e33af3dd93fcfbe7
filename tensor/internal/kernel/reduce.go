package kernel

// Reduction says which dimensions of an array a sum runs over. Neighbouring dimensions of one sort are
// merged, so that kept and summed ones alternate.
type Reduction struct {
	dims   []int
	summed []bool
}

// NewReduction plans the sum of an array of shape in to an array of shape out, which in is a broadcast of:
// the dimensions that out lacks in front, or where it has 1, are summed.
func NewReduction(in, out []int) *Reduction {
	p := &Reduction{}
	lead := len(in) - len(out)
	for i, d := range in {
		s := i < lead || (out[i-lead] == 1 && d != 1)
		if d == 1 {
			continue
		}
		if k := len(p.dims) - 1; k >= 0 && p.summed[k] == s {
			p.dims[k] *= d
			continue
		}
		p.dims, p.summed = append(p.dims, d), append(p.summed, s)
	}
	return p
}

// Dim is a dimension of an array: its size, and the distance in elements between neighbours along it.
type Dim struct{ Size, Stride int }

// Walk is a Reduction as two lists of dimensions, each outermost first.
type Walk struct {
	Kept, Summed []Dim
	InnerSummed  bool // the innermost dimension is summed
}

// Strides says how to walk the array.
func (p *Reduction) Strides() (w Walk) {
	stride := 1
	for _, d := range p.dims {
		stride *= d
	}
	for i, d := range p.dims {
		stride /= d
		w.InnerSummed = p.summed[i]
		if p.summed[i] {
			w.Summed = append(w.Summed, Dim{d, stride})
		} else {
			w.Kept = append(w.Kept, Dim{d, stride})
		}
	}
	return w
}

// Sum sets dst to scale times the sums of x. Sums are taken in float64 along a run and do not depend on the
// number of processors. dst must not be x.
func Sum[T Float](dst, x []T, scale float64, p *Reduction) {
	clear(dst)
	if len(x) > 0 {
		accumulate(dst, x, p.dims, p.summed)
	}
	if scale != 1 {
		for i := range dst {
			dst[i] *= T(scale)
		}
	}
}

// accumulate adds the sums of x to dst.
func accumulate[T Float](dst, x []T, dims []int, summed []bool) {
	switch len(dims) {
	case 0:
		dst[0] += x[0]
		return
	case 1:
		if summed[0] {
			dst[0] += T(total(x))
			return
		}
		addLoop(dst, dst, x, 1, 1)
		return
	case 2:
		if summed[0] {
			sumColumns(dst, x, dims[0])
			return
		}
	}
	stepX, stepD := len(x)/dims[0], 0
	if !summed[0] {
		stepD = len(dst) / dims[0]
	}
	for i := range dims[0] {
		accumulate(dst[i*stepD:], x[i*stepX:(i+1)*stepX], dims[1:], summed[1:])
	}
}

// total sums in four lanes, in an order that depends on nothing but the length.
func total[T Float](x []T) float64 {
	var a, b, c, d float64
	for ; len(x) >= 4; x = x[4:] {
		a += float64(x[0])
		b += float64(x[1])
		c += float64(x[2])
		d += float64(x[3])
	}
	for _, v := range x {
		a += float64(v)
	}
	return (a + b) + (c + d)
}

// sumColumns adds the column sums of x, which has rows rows, to dst.
func sumColumns[T Float](dst, x []T, rows int) {
	const lanes = 64
	cols := len(x) / rows
	split(cols, max(lanes, grainCheap/rows), func(lo, hi int) {
		var sums [lanes]float64
		for ; lo < hi; lo += lanes {
			n := min(lanes, hi-lo)
			acc := sums[:n]
			clear(acc)
			for r := range rows {
				row := x[r*cols+lo:][:n]
				for j, v := range row {
					acc[j] += float64(v)
				}
			}
			for j, v := range acc {
				dst[lo+j] += T(v)
			}
		}
	})
}
