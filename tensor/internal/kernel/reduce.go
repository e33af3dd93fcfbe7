package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/simd"
)

func count(dims []plan.Dim) int {
	n := 1
	for _, d := range dims {
		n *= d.Size
	}
	return n
}

// cut splits off the innermost dimension of dims, as a run of neighbours. Without dimensions the
// run is 1.
func cut(dims []plan.Dim) (outer []plan.Dim, run int) {
	if len(dims) == 0 {
		return nil, 1
	}
	last := len(dims) - 1
	return dims[:last], dims[last].Size
}

// Sum sets dst to the sums of x over divisor, which is 1, or the number of elements for a mean. The
// sums are pairwise and in float64, in an order that does not depend on the number of processors,
// and are rounded once. dst must not be x.
func Sum[T Float](dst, x []T, divisor float64, p *plan.Reduction) {
	switch {
	case len(x) == 0:
		for i := range dst {
			dst[i] = T(0 / divisor)
		}
	case p.InnerSummed:
		sumRuns(dst, x, divisor, p)
	default:
		sumColumns(dst, x, divisor, p)
	}
}

// runs holds the elements of one sum, which are in runs of neighbours.
type runs[T Float] struct {
	from  []T // x from the first run on
	outer []plan.Dim
	run   int
}

// sumRuns computes sums whose elements are in runs of neighbours.
func sumRuns[T Float](dst, x []T, divisor float64, p *plan.Reduction) {
	outer, run := cut(p.Summed)
	n := count(outer)
	split(len(dst), max(1, grainCheap/(n*run)), func(lo, hi int) {
		for o := lo; o < hi; o++ {
			dst[o] = T(runs[T]{x[plan.Offset(p.Kept, o):], outer, run}.sum(0, n) / divisor)
		}
	})
}

// sum returns the sum of runs [lo, hi).
func (r runs[T]) sum(lo, hi int) float64 {
	if (hi-lo)*r.run > block && hi-lo > 1 {
		mid := lo + (hi-lo)/2
		return r.sum(lo, mid) + r.sum(mid, hi)
	}
	sum := 0.0
	for i := lo; i < hi; i++ {
		sum += total(r.from[plan.Offset(r.outer, i):][:r.run])
	}
	return sum
}

// lanes is the number of neighbouring columns that are summed at a time.
const lanes = 256

// columns are neighbouring sums, with their elements in rows.
type columns[T Float] struct {
	from  []T // x from the first row on
	outer []plan.Dim
}

// sumColumns computes sums whose neighbours are neighbours in x as well.
func sumColumns[T Float](dst, x []T, divisor float64, p *plan.Reduction) {
	kept, cols := cut(p.Kept)
	rows := count(p.Summed)
	blocks := (cols + lanes - 1) / lanes
	split(count(kept)*blocks, max(1, grainCheap/(rows*min(cols, lanes))), func(lo, hi int) {
		var sums [lanes]float64
		for b := lo; b < hi; b++ {
			o, j := b/blocks, b%blocks*lanes
			out := dst[o*cols+j : o*cols+min(j+lanes, cols)]
			acc := sums[:len(out)]
			columns[T]{x[plan.Offset(kept, o)+j:], p.Summed}.sum(acc, 0, rows)
			for i, v := range acc {
				out[i] = T(v / divisor)
			}
		}
	})
}

// sum sets acc to the sums of rows [lo, hi).
func (c columns[T]) sum(acc []float64, lo, hi int) {
	if hi-lo > leaf {
		var second [lanes]float64
		mid := lo + half(hi-lo)
		c.sum(acc, lo, mid)
		c.sum(second[:len(acc)], mid, hi)
		for i := range acc {
			acc[i] += second[i]
		}
		return
	}
	clear(acc)
	for r := lo; r < hi; r++ {
		simd.AddTo(acc, c.from[plan.Offset(c.outer, r):])
	}
}
