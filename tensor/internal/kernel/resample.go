package kernel

import (
	"github.com/cistern-ml/cistern/tensor/backend/plan"
	"github.com/cistern-ml/cistern/tensor/internal/spare"
)

// tapped holds the taps of all columns, which all rows share.
type tapped struct{ taps []plan.Tap }

var spareTapped spare.Pool[tapped]

// withTaps calls f with the taps of an axis.
func withTaps(a *plan.Axis, f func(taps []plan.Tap)) {
	t := spareTapped.Take()
	t.taps = t.taps[:0]
	for o := range a.Out {
		t.taps = append(t.taps, a.Tap(o))
	}
	f(t.taps)
	spareTapped.Give(t)
}

// Resample sets the planes of y to samples of the planes of x.
func Resample[T Float](p *plan.Resample, y, x []T) {
	rows, cols := &p.Axes[0], &p.Axes[1]
	withTaps(cols, func(taps []plan.Tap) {
		split(p.Planes*rows.Out, max(1, grainCheap/4/max(1, cols.Out)), func(lo, hi int) {
			for r := lo; r < hi; r++ {
				high := rows.Tap(r % rows.Out)
				row, out := x[(r/rows.Out*rows.In+high.At)*cols.In:], y[r*cols.Out:][:cols.Out]
				if high.Next == 0 {
					for q, wide := range taps {
						out[q] = mix(row, wide)
					}
					continue
				}
				below, upper, lower := row[cols.In:], T(1-high.Next), T(high.Next)
				for q, wide := range taps {
					out[q] = upper*mix(row, wide) + lower*mix(below, wide)
				}
			}
		})
	})
}

func mix[T Float](row []T, t plan.Tap) T {
	if t.Next == 0 {
		return row[t.At]
	}
	return T(1-t.Next)*row[t.At] + T(t.Next)*row[t.At+1]
}

// ResampleGrad sets dx to the gradient of x, summed in float64.
func ResampleGrad[T Float](p *plan.Resample, dx, dy []T) {
	rows, cols := &p.Axes[0], &p.Axes[1]
	withTaps(cols, func(taps []plan.Tap) {
		split(p.Planes*rows.In, max(1, grainMath*rows.In/max(1, rows.Out*cols.Out)), func(lo, hi int) {
			for r := lo; r < hi; r++ {
				plane := dy[r/rows.In*rows.Out*cols.Out:][:rows.Out*cols.Out]
				gatherRow(rows, cols, dx[r*cols.In:][:cols.In], plane, r%rows.In, taps)
			}
		})
	})
}

// gatherRow sets row i of a gradient.
func gatherRow[T Float](rows, cols *plan.Axis, out, dy []T, i int, taps []plan.Tap) {
	top, bottom := rows.Readers(i)
	for j := range out {
		sum := 0.0
		left, right := cols.Readers(j)
		for p := top; p < bottom; p++ {
			high := rows.Tap(p).Share(i)
			if high == 0 {
				continue
			}
			for q, v := range dy[p*cols.Out:][left:max(left, right)] {
				if wide := taps[left+q].Share(j); wide != 0 {
					sum += high * wide * float64(v)
				}
			}
		}
		out[j] = T(sum)
	}
}
