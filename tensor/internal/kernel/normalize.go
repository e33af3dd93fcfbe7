package kernel

import "math"

// RowNorm is the plan of a normalisation of rows: N times Groups rows of Per times Inner elements. Element (i, j) of a row of
// group g has weight g*Per + i. A layer norm has one group and an Inner of 1; the rows of a group norm are channels and
// their pixels.
type RowNorm struct {
	N, Groups, Per, Inner int
	Eps                   float64
	Centered              bool // the mean is taken away; without it it is the root mean square that becomes 1
}

func (p *RowNorm) rows() int { return p.N * p.Groups }
func (p *RowNorm) cols() int { return p.Per * p.Inner }

// deviations is the sum of the squares of x - mean.
func deviations[T Float](x []T, mean float64) float64 {
	if len(x) > leaf {
		h := half(len(x))
		return deviations(x[:h], mean) + deviations(x[h:], mean)
	}
	sum := 0.0
	for _, v := range x {
		d := float64(v) - mean
		sum += d * d
	}
	return sum
}

// Normalize sets y to the normalised rows of x times w plus b, which may be nil, and stats to the mean of each row, and
// behind them to 1 over each one's standard deviation.
func Normalize[T Float](p *RowNorm, y []T, stats []float64, x, w, b []T) {
	cols := p.cols()
	split(p.rows(), max(1, grainCheap/cols/4), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row, out, g := x[r*cols:][:cols], y[r*cols:][:cols], r%p.Groups*p.Per
			mean := 0.0
			if p.Centered {
				mean = total(row) / float64(cols)
			}
			rstd := 1 / math.Sqrt(deviations(row, mean)/float64(cols)+p.Eps)
			stats[r], stats[p.rows()+r] = mean, rstd
			for i := range p.Per {
				scale, shift := rstd*orOne(w, g+i), orZero(b, g+i)
				for j := i * p.Inner; j < (i+1)*p.Inner; j++ {
					out[j] = T((float64(row[j])-mean)*scale + shift)
				}
			}
		}
	})
}

// NormalizeGrad sets dx to the gradient of x.
func NormalizeGrad[T Float](p *RowNorm, dx, dy, x, w []T, stats []float64) {
	cols := p.cols()
	split(p.rows(), max(1, grainCheap/cols/4), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			row, grad, out, g := x[r*cols:][:cols], dy[r*cols:][:cols], dx[r*cols:][:cols], r%p.Groups*p.Per
			mean, rstd := stats[r], stats[p.rows()+r]
			own, along := 0.0, 0.0 // the sums of the gradient, and of its products with the normalised row
			for i := range p.Per {
				f := orOne(w, g+i)
				a, b := dotDeviations(grad[i*p.Inner:][:p.Inner], row[i*p.Inner:][:p.Inner], mean)
				own += f * a
				along += f * b
			}
			own, along = own/float64(cols), along*rstd*rstd/float64(cols)
			if !p.Centered {
				own = 0
			}
			for i := range p.Per {
				f := orOne(w, g+i)
				for j := i * p.Inner; j < (i+1)*p.Inner; j++ {
					out[j] = T(rstd * (f*float64(grad[j]) - own - (float64(row[j])-mean)*along))
				}
			}
		}
	})
}

// dotDeviations is the sum of dy, and of dy times x - mean.
func dotDeviations[T Float](dy, x []T, mean float64) (sum, dot float64) {
	if len(x) > leaf {
		h := half(len(x))
		a, b := dotDeviations(dy[:h], x[:h], mean)
		c, d := dotDeviations(dy[h:], x[h:], mean)
		return a + c, b + d
	}
	for i, g := range dy {
		sum += float64(g)
		dot += float64(g) * (float64(x[i]) - mean)
	}
	return sum, dot
}

// NormalizeWeightGrad sets dw and db, either of which may be nil, to the gradients of the weights and of what is added.
func NormalizeWeightGrad[T Float](p *RowNorm, dw, db, dy, x []T, stats []float64) {
	n := p.Groups * p.Per
	split((n+lanes-1)/lanes, max(1, grainCheap/(lanes*max(1, p.N*p.Inner))), func(lo, hi int) {
		for block := lo; block < hi; block++ {
			var sums, dots [lanes]float64
			from, to := block*lanes, min((block+1)*lanes, n)
			p.columns(from, to, 0, p.N, func(r, k, at int) {
				sum, dot := dotDeviations(dy[at:at+p.Inner], x[at:at+p.Inner], stats[r])
				sums[k-from] += sum
				dots[k-from] += dot * stats[p.rows()+r]
			})
			for k := from; k < to; k++ {
				if dw != nil {
					dw[k] = T(dots[k-from])
				}
				if db != nil {
					db[k] = T(sums[k-from])
				}
			}
		}
	})
}

// columns calls f for the weights [from, to) and each of the rows n in [lo, hi) of their groups: with the row, the weight,
// and where the elements that have it begin.
func (p *RowNorm) columns(from, to, lo, hi int, f func(r, k, at int)) {
	for n := lo; n < hi; n++ {
		for k := from; k < to; k++ {
			r := n*p.Groups + k/p.Per
			f(r, k, r*p.cols()+k%p.Per*p.Inner)
		}
	}
}
