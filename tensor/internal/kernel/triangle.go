package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// Triangle sets dst to the part of the matrices x that t describes, and to zeros elsewhere.
func Triangle[E uint8 | uint16 | uint32 | uint64](dst, x []E, t *plan.Triangle) {
	if len(dst) == 0 {
		return
	}
	split(len(dst)/t.Cols, max(1, grainCheap/t.Cols), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			// Column row + diagonal is the last one of a lower triangle, and the first one of an
			// upper one.
			from, to := 0, min(max(row%t.Rows+t.Diagonal+1, 0), t.Cols)
			if t.Upper {
				from, to = min(max(row%t.Rows+t.Diagonal, 0), t.Cols), t.Cols
			}
			out := dst[row*t.Cols:][:t.Cols]
			clear(out[:from])
			copy(out[from:to], x[row*t.Cols:][from:to])
			clear(out[to:])
		}
	})
}
