package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// MaxPool sets y to the greatest element of every window, and indices to its position in its plane;
// of equal elements it takes the first. Every window has an element inside of the plane. NaN is
// greater than all numbers; of several, the last one counts.
func MaxPool[T Float](p *plan.Pool, y []T, indices []int32, x []T) {
	rows := p.Planes * p.Out[0]
	split(rows, max(1, grainCheap/(p.Out[1]*p.Window[0]*p.Window[1])), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			plane := x[row/p.Out[0]*p.Pixels():][:p.Pixels()]
			from, to := p.First(0, row%p.Out[0]), p.End(0, row%p.Out[0])
			places, out := indices[row*p.Out[1]:][:p.Out[1]], y[row*p.Out[1]:][:p.Out[1]]
			// The processor can't predict which element is the greatest, so no branch and no
			// address depends on it.
			for q := range places {
				left, right := p.First(1, q), p.End(1, q)
				best := from*p.In[1] + left
				greatest := plane[best]
				for h := from; h < to; h += p.Dilation[0] {
					for at := h*p.In[1] + left; at < h*p.In[1]+right; at += p.Dilation[1] {
						v := plane[at]
						if v > greatest {
							best = at
						}
						if v != v {
							best = at
						}
						greatest = max(greatest, v)
					}
				}
				places[q] = int32(best)
			}
			for q, best := range places {
				out[q] = plane[best]
			}
		}
	})
}

// MaxPoolGrad sets dx to the gradient of x.
func MaxPoolGrad[T Float](p *plan.Pool, dx, dy []T, indices []int32) {
	places := p.Out[0] * p.Out[1]
	split(p.Planes, max(1, grainCheap/(p.Pixels()+places)), func(lo, hi int) {
		for plane := lo; plane < hi; plane++ {
			to := dx[plane*p.Pixels():][:p.Pixels()]
			clear(to)
			for i, g := range dy[plane*places:][:places] {
				to[indices[plane*places+i]] += g
			}
		}
	})
}

// average returns the part of a plane whose average is result (i, j), and the divisor of its sum.
func average(p *plan.Pool, i, j int) (top, bottom, left, right int, divisor float64) {
	var from, to [2]int
	count := 1
	for d, i := range [2]int{i, j} {
		if p.Adaptive {
			from[d], to[d] = i*p.In[d]/p.Out[d], ((i+1)*p.In[d]+p.Out[d]-1)/p.Out[d]
			count *= to[d] - from[d]
			continue
		}
		from[d] = i*p.Stride[d] - p.Pad[d]
		to[d] = min(from[d]+p.Window[d], p.In[d]+p.Pad[d])
		padded := to[d] - from[d]
		from[d], to[d] = max(from[d], 0), min(to[d], p.In[d])
		if p.ExcludePadding {
			padded = to[d] - from[d]
		}
		count *= padded
	}
	if p.HasDivisor {
		count = p.Divisor
	}
	return from[0], to[0], from[1], to[1], float64(count)
}

// AvgPool sets y to the average of every window, summed in float64.
func AvgPool[T Float](p *plan.Pool, y, x []T) {
	rows := p.Planes * p.Out[0]
	split(rows, max(1, grainCheap*p.Out[0]/max(1, p.Pixels())), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			plane := x[row/p.Out[0]*p.Pixels():][:p.Pixels()]
			for q := range p.Out[1] {
				top, bottom, left, right, divisor := average(p, row%p.Out[0], q)
				sum := 0.0
				for h := top; h < bottom; h++ {
					for _, v := range plane[h*p.In[1]:][left:max(left, right)] {
						sum += float64(v)
					}
				}
				y[row*p.Out[1]+q] = T(sum / divisor)
			}
		}
	})
}

// AvgPoolGrad sets dx to the gradient of x.
func AvgPoolGrad[T Float](p *plan.Pool, dx, dy []T) {
	places := p.Out[0] * p.Out[1]
	split(p.Planes, max(1, grainCheap/max(1, p.Pixels()+places)), func(lo, hi int) {
		for plane := lo; plane < hi; plane++ {
			to := dx[plane*p.Pixels():][:p.Pixels()]
			clear(to)
			for i, g := range dy[plane*places:][:places] {
				top, bottom, left, right, divisor := average(p, i/p.Out[1], i%p.Out[1])
				share := g / T(divisor)
				for h := top; h < bottom; h++ {
					row := to[h*p.In[1]:][left:max(left, right)]
					for j := range row {
						row[j] += share
					}
				}
			}
		}
	})
}
