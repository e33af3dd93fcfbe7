package kernel

import (
	"cmp"
	"math"
	"slices"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// ranked is an element of a row, with a rank that orders like the number but is an integer.
type ranked struct {
	rank uint64
	at   int32
}

// Sort sets index, with rows of o.Keep elements, to the positions of the first elements of each row
// of x in the order of o.
func Sort[T Float](index []int32, x []T, o plan.Order) {
	to := plan.Rows{Cols: o.Keep, Inner: o.Inner}
	eachRow(len(x), o.Rows, func(lo, hi int) {
		room := make([]ranked, min(o.Cols, max(64, 2*o.Keep)))
		for i := lo; i < hi; i++ {
			at := to.Start(i)
			for j, e := range firsts(room, x[o.Start(i):], o) {
				index[at+j*o.Inner] = e.at
			}
		}
	})
}

// firsts returns the first o.Keep elements of the row at the beginning of x. Whenever room is full,
// it is sorted and only its first o.Keep elements are kept. Later elements that do not rank before
// them are skipped.
func firsts[T Float](room []ranked, x []T, o plan.Order) []ranked {
	var flip uint64
	if o.Descending {
		flip = math.MaxUint64
	}
	limit, full := uint64(0), false
	list := room[:0]
	for j := range o.Cols {
		rank := rankOf(float64(x[j*o.Inner])) ^ flip
		if full && rank >= limit {
			continue
		}
		if len(list) == cap(room) {
			list = sorted(list)[:o.Keep]
			limit, full = list[o.Keep-1].rank, true
			if rank >= limit {
				continue
			}
		}
		list = append(list, ranked{rank, int32(j)})
	}
	return sorted(list)[:o.Keep]
}

// sorted sorts by rank, then by position, so that equal elements keep their order.
func sorted(list []ranked) []ranked {
	slices.SortFunc(list, func(a, b ranked) int { return cmp.Or(cmp.Compare(a.rank, b.rank), cmp.Compare(a.at, b.at)) })
	return list
}

// rankOf returns a rank that is greater for greater numbers, the same for both zeros, and the
// greatest for every NaN.
func rankOf(v float64) uint64 {
	bits := math.Float64bits(v)
	switch {
	case v != v:
		return math.MaxUint64
	case v < 0:
		return ^bits
	}
	return bits | 1<<63 // the same for both zeros
}
