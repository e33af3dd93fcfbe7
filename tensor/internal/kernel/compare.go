package kernel

import "github.com/cistern-ml/cistern/tensor/backend/plan"

// Comparison is a relation between two numbers.
type Comparison uint8

// The comparisons, in the order of compare.cu. NaN is unequal to everything, and neither less nor
// greater.
const (
	Equal Comparison = iota
	NotEqual
	Less
	LessEqual
)

// Number is the constraint of elements that the host compares.
type Number interface {
	float32 | float64 | int32 | int64 | uint8
}

// Compare sets dst to 1 where a and b, broadcast according to p, are in the relation, and to 0
// elsewhere.
func Compare[T Number](c Comparison, dst []uint8, a, b []T, p *plan.Broadcast) {
	n, sa, sb := p.Row()
	if len(dst) == n {
		split(n, grainCheap, func(lo, hi int) { compareRow(c, dst[lo:hi], a[lo*sa:], b[lo*sb:], sa, sb) })
		return
	}
	split(len(dst)/max(1, n), max(1, grainCheap/max(1, n)), func(lo, hi int) {
		for row := lo; row < hi; row++ {
			oa, ob := p.Offsets(row)
			compareRow(c, dst[row*n:(row+1)*n], a[oa:], b[ob:], sa, sb)
		}
	})
}

func compareRow[T Number](c Comparison, dst []uint8, a, b []T, sa, sb int) {
	switch c {
	case Equal:
		for i := range dst {
			dst[i] = mark(a[i*sa] == b[i*sb])
		}
	case NotEqual:
		for i := range dst {
			dst[i] = mark(a[i*sa] != b[i*sb])
		}
	case Less:
		for i := range dst {
			dst[i] = mark(a[i*sa] < b[i*sb])
		}
	case LessEqual:
		for i := range dst {
			dst[i] = mark(a[i*sa] <= b[i*sb])
		}
	}
}

func mark(yes bool) uint8 {
	if yes {
		return 1
	}
	return 0
}
