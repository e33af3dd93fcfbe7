package toy

import (
	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// each returns a function of the last operand's elements and the operation's number.
func each(f func(x, c float64) float64) func(*args) {
	return func(a *args) {
		y, x, c := a.operands[0], a.operands[len(a.operands)-1], a.c[0]
		if a.dtype == backend.Float32 {
			c = float64(float32(c))
		}
		for i := range y.len() {
			y.set(i, f(x.at(i), c))
		}
	}
}

// zip returns a function of two operands: they broadcast, or the second one is a row for each row
// of the first.
func zip(f func(a, b float64) float64) func(*args) {
	return func(a *args) {
		y, x, z := a.operands[0], a.operands[1], a.operands[2]
		p, broadcasts := a.plan.(*plan.Broadcast)
		for i := range y.len() {
			j, k := i, i%z.len()
			if broadcasts {
				j, k = p.At(i)
			}
			y.set(i, f(x.at(j), z.at(k)))
		}
	}
}

func add(a, b float64) float64 { return a + b }

func mul(a, b float64) float64 { return a * b }

func relu(x float64) float64 {
	if x < 0 {
		return 0
	}
	return x
}

func reluGrad(dy, y float64) float64 {
	if y <= 0 {
		return 0
	}
	return dy
}
