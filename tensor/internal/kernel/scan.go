package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// CumSum sets each element of dst to the sum of its row of x up to this element or, in reverse,
// from it on, in float64. Neighbouring rows are summed together.
func CumSum[T Float](dst, x []T, r plan.Rows, reverse bool) {
	if len(x) == 0 {
		return
	}
	step, first := r.Inner, 0
	if reverse {
		step, first = -r.Inner, (r.Cols-1)*r.Inner
	}
	const most = 64
	block := min(r.Inner, most)
	blocks := (r.Inner + block - 1) / block
	split(len(x)/(r.Cols*r.Inner)*blocks, max(1, grainCheap/(r.Cols*block)), func(lo, hi int) {
		var sums [most]float64
		for b := lo; b < hi; b++ {
			column := b % blocks * block
			at := b/blocks*r.Cols*r.Inner + column + first
			n := min(block, r.Inner-column)
			clear(sums[:n])
			for range r.Cols {
				for i, v := range x[at : at+n] {
					sums[i] += float64(v)
					dst[at+i] = T(sums[i])
				}
				at += step
			}
		}
	})
}
