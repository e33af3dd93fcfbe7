package toy

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend"
	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// entropy is a cross entropy of the logits x.
type entropy struct {
	*plan.Entropy
	x, labels, weights operand
}

func (a *args) entropy() entropy {
	return entropy{backend.ParamsOf[plan.Entropy](&a.params), a.operands[1], a.operands[2], a.operands[3]}
}

// class returns the class of a row: -1 if the row is ignored, and Cols if its label is out of
// range.
func (e entropy) class(row int) int {
	switch v := e.labels.at(row); {
	case v == float64(e.Ignore):
		return -1
	case v < 0 || v >= float64(e.Cols):
		return e.Cols
	default:
		return int(v)
	}
}

func (e entropy) weight(class int) float64 {
	if e.weights.len() == 0 {
		return 1
	}
	return e.weights.at(class)
}

// targets returns the weight of each class of a row, and their sum; nil if the row does not count.
func (e entropy) targets(row int) (each []float64, all float64) {
	class := e.class(row)
	if class < 0 || class == e.Cols {
		return nil, 0
	}
	each = make([]float64, e.Cols)
	for j := range each {
		if each[j] = e.Smoothing / float64(e.Cols) * e.weight(j); j == class {
			each[j] += (1 - e.Smoothing) * e.weight(j)
		}
	}
	return each, sum(e.Cols, func(j int) float64 { return each[j] })
}

// divisor returns the number by which the sum of the losses is divided.
func (e entropy) divisor() float64 {
	if !e.Mean {
		return 1
	}
	return sum(e.labels.len(), func(i int) float64 {
		if class := e.class(i); class >= 0 && (class < e.Cols || e.weights.len() == 0) {
			return e.weight(class)
		}
		return 0
	})
}

func (e entropy) loss(row int) float64 {
	if e.class(row) == e.Cols {
		return math.NaN()
	}
	at := func(j int) int { return e.Start(row) + j*e.Inner }
	top, total := exps(e.x, e.Cols, at)
	targets, _ := e.targets(row)
	return sum(len(targets), func(j int) float64 {
		if targets[j] == 0 {
			return 0
		}
		return targets[j] * (top - e.x.at(at(j)) + math.Log(total))
	})
}

func crossEntropy(a *args) {
	e, loss, fault := a.entropy(), a.operands[0], a.operands[4]
	for i := range e.labels.len() {
		// The next read of a tensor returns the first fault.
		if e.class(i) == e.Cols && fault.at(0) == 0 {
			for k, v := range []float64{plan.FaultLabel, float64(i), e.labels.at(i), float64(e.Cols)} {
				fault.set(k, min(max(v, math.MinInt32), math.MaxInt32))
			}
		}
		if e.Each {
			loss.set(i, e.loss(i))
		}
	}
	if !e.Each {
		loss.set(0, sum(e.labels.len(), e.loss)/e.divisor())
	}
}

func crossEntropyGrad(a *args) {
	e, dx, dloss := a.entropy(), a.operands[0], a.operands[4]
	divisor := e.divisor()
	eachRow(e.x.len(), e.Rows, func(i int, at func(j int) int) {
		d := dloss.at(0) / divisor
		if e.Each {
			d = dloss.at(i)
		}
		top, total := exps(e.x, e.Cols, at)
		targets, all := e.targets(i)
		for j := range e.Cols {
			v := 0.0
			if targets != nil {
				v = d * (math.Exp(e.x.at(at(j))-top)/total*all - targets[j])
			}
			dx.set(at(j), v)
		}
	})
}
