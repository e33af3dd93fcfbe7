package toy

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// reduce sums over some dimensions, and divides.
func reduce(a *args) {
	y, x, p := a.operands[0], a.operands[1], a.plan.(*plan.Reduction)
	terms := 1
	for _, d := range p.Summed {
		terms *= d.Size
	}
	for i := range y.len() {
		from := plan.Offset(p.Kept, i)
		y.set(i, sum(terms, func(j int) float64 { return x.at(from + plan.Offset(p.Summed, j)) })/a.c[0])
	}
}

// eachRow calls f for each vector along a dimension, with the index of its element j.
func eachRow(n int, r plan.Rows, f func(row int, at func(j int) int)) {
	for i := range n / max(1, r.Cols) {
		f(i, func(j int) int { return r.Start(i) + j*r.Inner })
	}
}

// exps returns the greatest element of a row, and the sum of exp(element - greatest).
func exps(x operand, cols int, at func(j int) int) (top, total float64) {
	top = math.Inf(-1)
	for j := range cols {
		top = max(top, x.at(at(j)))
	}
	return top, sum(cols, func(j int) float64 { return math.Exp(x.at(at(j)) - top) })
}

func softmax(a *args) {
	y, x, r := a.operands[0], a.operands[1], *backend.ParamsOf[plan.Rows](&a.params)
	eachRow(x.len(), r, func(_ int, at func(j int) int) {
		top, total := exps(x, r.Cols, at)
		for j := range r.Cols {
			y.set(at(j), math.Exp(x.at(at(j))-top)/total)
		}
	})
}

// argMax finds the first of the greatest elements. NaN is the greatest.
func argMax(a *args) {
	y, x, r := a.operands[0], a.operands[1], *backend.ParamsOf[plan.Rows](&a.params)
	eachRow(x.len(), r, func(i int, at func(j int) int) {
		best := 0
		for j := 1; j < r.Cols; j++ {
			if b := x.at(at(best)); b == b && !(x.at(at(j)) <= b) {
				best = j
			}
		}
		y.set(i, float64(best))
	})
}
