package reference

import "math"

// Conv is a convolution of x [N, Groups*C, In...] with w [Groups*K, C, Window...], to y [N,
// Groups*K, Out...].
type Conv struct {
	N, Groups, C, K                        int
	In, Out, Window, Stride, Pad, Dilation [2]int
}

// each calls f for every product, with the positions in y, w and x; the position in x is -1 in the
// padding.
func (c Conv) each(f func(y, w, x int)) {
	for n := range c.N {
		for k := range c.Groups * c.K {
			each(append(c.Out[:], append([]int{c.C}, c.Window[:]...)...), func(_ int, i []int) {
				h := i[0]*c.Stride[0] - c.Pad[0] + i[3]*c.Dilation[0]
				v := i[1]*c.Stride[1] - c.Pad[1] + i[4]*c.Dilation[1]
				x := -1
				if h >= 0 && h < c.In[0] && v >= 0 && v < c.In[1] {
					x = (((n*c.Groups+k/c.K)*c.C+i[2])*c.In[0]+h)*c.In[1] + v
				}
				y := ((n*c.Groups*c.K+k)*c.Out[0]+i[0])*c.Out[1] + i[1]
				f(y, ((k*c.C+i[2])*c.Window[0]+i[3])*c.Window[1]+i[4], x)
			})
		}
	}
}

func resultOf(shape []int, sums []Sum) Result {
	r := newResult(shape)
	for i := range sums {
		r.Data[i], r.Size[i] = sums[i].Value(), sums[i].Size()
	}
	return r
}

// in returns an element of x, or 0 for the padding.
func in(x Array, i int) float64 {
	if i < 0 {
		return 0
	}
	return x.Data[i]
}

// Forward returns y, of the given shape. bias may have no elements.
func (c Conv) Forward(x, w, bias Array, shape []int) Result {
	sums := make([]Sum, elements(shape))
	c.each(func(y, k, i int) { sums[y].AddProduct(in(x, i), w.Data[k]) })
	for i := range sums {
		if len(bias.Data) > 0 {
			sums[i].Add(bias.Data[i/(c.Out[0]*c.Out[1])%len(bias.Data)])
		}
	}
	return resultOf(shape, sums)
}

// InputGrad returns the gradient of x, of the given shape, plus a bias of each of its channels;
// bias may have no elements.
func (c Conv) InputGrad(dy, w, bias Array, shape []int) Result {
	sums := make([]Sum, elements(shape))
	c.each(func(y, k, i int) {
		if i >= 0 {
			sums[i].AddProduct(dy.Data[y], w.Data[k])
		}
	})
	for i := range sums {
		if len(bias.Data) > 0 {
			sums[i].Add(bias.Data[i/(c.In[0]*c.In[1])%len(bias.Data)])
		}
	}
	return resultOf(shape, sums)
}

// WeightGrad returns the gradient of w, of the given shape.
func (c Conv) WeightGrad(dy, x Array, shape []int) Result {
	sums := make([]Sum, elements(shape))
	c.each(func(y, k, i int) { sums[k].AddProduct(dy.Data[y], in(x, i)) })
	return resultOf(shape, sums)
}

// Pool is a pooling of planes, from x [..., In...] to y [..., Out...].
type Pool struct {
	In, Out, Window, Stride, Pad, Dilation [2]int
	Adaptive, ExcludePadding               bool
	Divisor                                float64 // 0 for the number of elements
}

// elements calls f with the positions, in a plane, of a window's elements. It returns their number,
// and their number with the padding.
func (p Pool) elements(i, j int, f func(at int)) (inside, all int) {
	span := func(d, i int) (places []int, all int) {
		if p.Adaptive {
			from, to := float64(i)*float64(p.In[d])/float64(p.Out[d]), float64(i+1)*float64(p.In[d])/float64(p.Out[d])
			for at := int(math.Floor(from)); at < int(math.Ceil(to)); at++ {
				places = append(places, at)
			}
			return places, len(places)
		}
		for k := range p.Window[d] {
			at := i*p.Stride[d] - p.Pad[d] + k*p.Dilation[d]
			if at >= 0 && at < p.In[d] {
				places = append(places, at)
			}
			if at < p.In[d]+p.Pad[d] {
				all++
			}
		}
		return places, all
	}
	rows, high := span(0, i)
	cols, wide := span(1, j)
	for _, h := range rows {
		for _, w := range cols {
			f(h*p.In[1] + w)
		}
	}
	return len(rows) * len(cols), high * wide
}

// each calls f for every result, with its position in y, the start of its plane in x, and its
// position in the plane of y.
func (p Pool) each(planes int, f func(y, plane, i, j int)) {
	each([]int{planes, p.Out[0], p.Out[1]}, func(at int, index []int) { f(at, index[0]*p.In[0]*p.In[1], index[1], index[2]) })
}

// Max returns the greatest element of every window, and its position in its plane. Of equal
// elements it takes the first, of several NaNs the last.
func (p Pool) Max(x Array, shape []int) (Result, []int32) {
	r := newResult(shape)
	indices := make([]int32, len(r.Data))
	p.each(len(x.Data)/(p.In[0]*p.In[1]), func(y, plane, i, j int) {
		best := -1
		p.elements(i, j, func(at int) {
			v := x.Data[plane+at]
			if best < 0 || math.IsNaN(v) || v > x.Data[plane+best] {
				best = at
			}
		})
		r.Data[y], indices[y] = x.Data[plane+best], int32(best)
	})
	return r, indices
}

// MaxGrad returns the gradient of x.
func (p Pool) MaxGrad(dy Array, indices []int32, shape []int) Result {
	sums := make([]Sum, elements(shape))
	p.each(len(sums)/(p.In[0]*p.In[1]), func(y, plane, _, _ int) { sums[plane+int(indices[y])].Add(dy.Data[y]) })
	return resultOf(shape, sums)
}

func (p Pool) divisor(inside, all int) float64 {
	switch {
	case p.Divisor != 0:
		return p.Divisor
	case p.ExcludePadding:
		return float64(inside)
	}
	return float64(all)
}

// Average returns the average of every window.
func (p Pool) Average(x Array, shape []int) Result {
	r := newResult(shape)
	p.each(len(x.Data)/(p.In[0]*p.In[1]), func(y, plane, i, j int) {
		var sum Sum
		n := p.divisor(p.elements(i, j, func(at int) { sum.Add(x.Data[plane+at]) }))
		r.Data[y], r.Size[y] = sum.Value()/n, sum.Size()/math.Abs(n)
	})
	return r
}

// AverageGrad returns the gradient of x.
func (p Pool) AverageGrad(dy Array, shape []int) Result {
	sums := make([]Sum, elements(shape))
	p.each(len(sums)/(p.In[0]*p.In[1]), func(y, plane, i, j int) {
		n := p.divisor(p.elements(i, j, func(int) {}))
		p.elements(i, j, func(at int) { sums[plane+at].Add(dy.Data[y] / n) })
	})
	return resultOf(shape, sums)
}
