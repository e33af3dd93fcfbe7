package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

// rowParts iterates over the parts of a row: elements [lo, hi), with their weights w and biases b,
// which have an element for each or one for all.
type rowParts[T Float] struct {
	p         *plan.RowNorm
	all       [2][]T // the weights and biases of the row's group; nil if none
	one, zero [1]T
	lo, hi    int
	w, b      []T
}

// start begins a row whose first weight is number g.
func (r *rowParts[T]) start(p *plan.RowNorm, g int, w, b []T) {
	r.p, r.hi, r.one = p, 0, [1]T{1}
	for i, s := range [2][]T{w, b} {
		r.all[i] = nil
		if s != nil {
			r.all[i] = s[g : g+p.Per]
		}
	}
}

// next moves to the next part, or returns false after the last one.
func (r *rowParts[T]) next() bool {
	if r.lo = r.hi; r.lo >= r.p.Cols() {
		return false
	}
	from, to := r.lo, min(r.lo+block, r.p.Per)
	r.hi = to
	if r.p.Inner != 1 {
		from = r.lo / r.p.Inner
		to = from + 1
		r.hi = min(r.lo+block, to*r.p.Inner)
	}
	r.w, r.b = r.one[:], r.zero[:]
	if r.all[0] != nil {
		r.w = r.all[0][from:to]
	}
	if r.all[1] != nil {
		r.b = r.all[1][from:to]
	}
	return true
}

// Normalize sets y to the normalised rows of x, times w, plus b; w and b may be nil. It sets stats
// to the mean of each row, followed by 1 over each row's standard deviation.
func Normalize[T Float](p *plan.RowNorm, y []T, stats []float64, x, w, b []T) {
	cols := p.Cols()
	split(p.Rows(), max(1, rowGrain()/cols), func(lo, hi int) {
		var q rowParts[T]
		for r := lo; r < hi; r++ {
			row, out, g := x[r*cols:][:cols], y[r*cols:][:cols], r%p.Groups*p.Per
			mean := 0.0
			if p.Centered {
				mean = total(row) / float64(cols)
			}
			rstd := 1 / math.Sqrt(deviations(row, mean)/float64(cols)+p.Eps)
			stats[r], stats[p.Rows()+r] = mean, rstd
			for q.start(p, g, w, b); q.next(); {
				simd.Normalize(out[q.lo:q.hi], row[q.lo:q.hi], q.w, q.b, mean, rstd)
			}
		}
	})
}

// NormalizeGrad sets dx to the gradient of x.
func NormalizeGrad[T Float](p *plan.RowNorm, dx, dy, x, w []T, stats []float64) {
	cols := p.Cols()
	split(p.Rows(), max(1, rowGrain()/cols), func(lo, hi int) {
		var q rowParts[T]
		for r := lo; r < hi; r++ {
			row, grad, out, g := x[r*cols:][:cols], dy[r*cols:][:cols], dx[r*cols:][:cols], r%p.Groups*p.Per
			mean, rstd := stats[r], stats[p.Rows()+r]
			// own is the sum of the gradient, and along that of its products with the normalised
			// row.
			own, along := 0.0, 0.0
			for q.start(p, g, w, nil); q.next(); {
				a, b := simd.DotDeviations(grad[q.lo:q.hi], row[q.lo:q.hi], q.w, mean)
				own += a
				along += b
			}
			own, along = own/float64(cols), along*rstd*rstd/float64(cols)
			if !p.Centered {
				own = 0
			}
			for q.start(p, g, w, nil); q.next(); {
				simd.NormalizeGrad(out[q.lo:q.hi], grad[q.lo:q.hi], row[q.lo:q.hi], q.w, mean, rstd, own, along)
			}
		}
	})
}

// NormalizeWeightGrad sets dw and db, either of which may be nil, to the gradients of the weights
// and biases.
func NormalizeWeightGrad[T Float](p *plan.RowNorm, dw, db, dy, x []T, stats []float64) {
	n := p.Groups * p.Per
	split((n+lanes-1)/lanes, max(1, grainCheap/(lanes*max(1, p.N*p.Inner))), func(lo, hi int) {
		for block := lo; block < hi; block++ {
			var sums, dots [lanes]float64
			from, to := block*lanes, min((block+1)*lanes, n)
			if p.Inner == 1 && p.Groups == 1 {
				for r := range p.N {
					at := r*p.Per + from
					simd.AddDeviations(sums[:to-from], dots[:to-from], dy[at:], x[at:], stats[r], stats[p.N+r])
				}
			} else {
				eachWeight(p, from, to, 0, p.N, func(r, k, at int) {
					sum, dot := dotDeviations(dy[at:at+p.Inner], x[at:at+p.Inner], stats[r])
					sums[k-from] += sum
					dots[k-from] += dot * stats[p.Rows()+r]
				})
			}
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

// eachWeight calls f for the weights [from, to) and the rows of their groups for n in [lo, hi). f
// gets the row, the weight, and the offset of the elements with that weight.
func eachWeight(p *plan.RowNorm, from, to, lo, hi int, f func(r, k, at int)) {
	for n := lo; n < hi; n++ {
		for k := from; k < to; k++ {
			r := n*p.Groups + k/p.Per
			f(r, k, r*p.Cols()+k%p.Per*p.Inner)
		}
	}
}
