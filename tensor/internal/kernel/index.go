package kernel

import (
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// Rows of an array are taken by index, and the gradient adds each row of dy to the row that it was
// taken from. The additions to a row follow the order of the index: its positions are sorted by
// row, then by position. Then each row's additions are summed at once, in float64. So the results
// are the same in every run and on every device, and rows without additions are not touched.

// Index is the constraint of indices.
type Index interface{ int32 | int64 }

// outside reports whether there is no row, or class, with that number.
func outside[I Index](at I, rows int) bool { return at < 0 || int64(at) >= int64(rows) }

// note records the first bad element of list in fault, unless fault already records one.
func note[I Index](fault *plan.Fault, code int32, list []I, limit int, bad func(at I) bool) {
	if fault.Code != 0 {
		return
	}
	if i := slices.IndexFunc(list, bad); i >= 0 {
		*fault = plan.Fault{Code: code, Row: narrow(int64(i)), Got: narrow(int64(list[i])), Limit: narrow(int64(limit))}
	}
}

// TakeRows sets row j of dst to row index[j] of x. If there is no such row, it sets the elements to
// bad.
func TakeRows[E any, I Index](dst, x []E, index []I, t plan.Take, bad E, fault *plan.Fault) {
	note(fault, plan.FaultIndex, index, t.Rows, func(at I) bool { return outside(at, t.Rows) })
	split(t.Outer*t.Count, max(1, grainCheap/max(1, t.Inner)), func(lo, hi int) {
		for r := lo; r < hi; r++ {
			o, at := r/t.Count, index[r%t.Count]
			row := dst[r*t.Inner:][:t.Inner]
			if outside(at, t.Rows) {
				for i := range row {
					row[i] = bad
				}
				continue
			}
			copy(row, x[(o*t.Rows+int(at))*t.Inner:][:t.Inner])
		}
	})
}

// noRow is the row of positions without an addition. It sorts after all others.
const noRow = math.MaxUint32

// SortIndex sets order to the positions of the index, as row<<32 + position, in ascending order.
// Positions of the row skip, and of rows that don't exist, come last, as noRow.
func SortIndex[I Index](order []uint64, index []I, rows, skip int) {
	for j, at := range index {
		row := uint64(noRow)
		if !outside(at, rows) && int(at) != skip {
			row = uint64(at)
		}
		order[j] = row<<32 | uint64(j)
	}
	slices.Sort(order)
}

// TakeRowsGrad adds the rows of dy to those of dst from which TakeRows took them, given the sorted
// index. dst must be 0 before. mean divides each row's sum by the number of its positions.
func TakeRowsGrad[T Float](dst, dy []T, order []uint64, t plan.Take, mean bool) {
	split(len(order), max(1, grainCheap/max(1, t.Inner*t.Outer)), func(lo, hi int) {
		for lo < hi {
			row := order[lo] >> 32
			end := lo + 1
			for end < len(order) && order[end]>>32 == row {
				end++
			}
			if row != noRow && (lo == 0 || order[lo-1]>>32 != row) {
				sumRow(dst, dy, order[lo:end], int(row), t, mean)
			}
			lo = end
		}
	})
}

func sumRow[T Float](dst, dy []T, places []uint64, row int, t plan.Take, mean bool) {
	var sums [64]float64
	divisor := 1.0
	if mean {
		divisor = float64(len(places))
	}
	for o := range t.Outer {
		out := dst[(o*t.Rows+row)*t.Inner:][:t.Inner]
		for from := 0; from < t.Inner; from += len(sums) {
			part := out[from:min(from+len(sums), t.Inner)]
			clear(sums[:])
			for _, place := range places {
				j := int(place & math.MaxUint32)
				for i, v := range dy[(o*t.Count+j)*t.Inner+from:][:len(part)] {
					sums[i] += float64(v)
				}
			}
			for i := range part {
				part[i] = T(sums[i] / divisor)
			}
		}
	}
}

// GatherElements sets dst, of the index's shape, to the elements that the index selects. For an
// index outside of x it sets the element to bad.
func GatherElements[E any, I Index](dst, x []E, index []I, g *plan.Gather, bad E, fault *plan.Fault) {
	note(fault, plan.FaultIndex, index, g.Rows, func(at I) bool { return outside(at, g.Rows) })
	split(len(index), grainCheap/8, func(lo, hi int) {
		for i := lo; i < hi; i++ {
			place, column := g.Place(i)
			if at := index[place]; !outside(at, g.Rows) {
				dst[place] = x[column+int(at)*g.XStride]
			} else {
				dst[place] = bad
			}
		}
	})
}

// GatherGrad adds the elements of dy to the elements of dst from which they were gathered.
// Different columns of the index select different elements, so each column is added by itself, in
// the order of its elements.
func GatherGrad[T Float, I Index](dst, dy []T, index []I, g *plan.Gather, fault *plan.Fault) {
	note(fault, plan.FaultIndex, index, g.Rows, func(at I) bool { return outside(at, g.Rows) })
	split(g.Columns.Count(), max(1, grainCheap/8/max(1, g.Length)), func(lo, hi int) {
		for c := lo; c < hi; c++ {
			place, column := g.Columns.At(c)
			for range g.Length {
				if at := index[place]; !outside(at, g.Rows) {
					dst[column+int(at)*g.XStride] += dy[place]
				}
				place += g.IndexStride
			}
		}
	})
}

// Scatter sets the elements of dst that the index selects to those of src, or to v if src is nil.
// If several are set to the same element, the last one wins.
func Scatter[E any, I Index](dst, src []E, v E, index []I, g *plan.Gather, fault *plan.Fault) {
	note(fault, plan.FaultIndex, index, g.Rows, func(at I) bool { return outside(at, g.Rows) })
	split(g.Columns.Count(), max(1, grainCheap/8/max(1, g.Length)), func(lo, hi int) {
		v := v
		for c := lo; c < hi; c++ {
			place, column := g.Columns.At(c)
			for range g.Length {
				if at := index[place]; !outside(at, g.Rows) {
					if src != nil {
						v = src[place]
					}
					dst[column+int(at)*g.XStride] = v
				}
				place += g.IndexStride
			}
		}
	})
}
