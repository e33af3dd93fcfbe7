package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// NLLLoss sets loss to the weighted -x[label] of each row, or loss[0] to their sum or mean. weights
// may be nil. Ignored and bad labels count as in CrossEntropy.
func NLLLoss[T Float, L Index](loss, x []T, labels []L, weights []T, e *plan.Entropy, fault *plan.Fault) {
	note(fault, plan.FaultLabel, labels, e.Cols, func(label L) bool {
		_, _, bad := classOf(e, label)
		return bad
	})
	of := func(i int) float64 {
		switch class, counts, bad := classOf(e, labels[i]); {
		case !counts:
			return 0
		case bad:
			return math.NaN()
		default:
			return -orElse(weights, class, 1) * float64(x[e.Start(i)+class*e.Inner])
		}
	}
	if !e.Each {
		loss[0] = T(sumOf(0, len(labels), of) / divisor(labels, weights, e))
		return
	}
	for i := range labels {
		loss[i] = T(of(i))
	}
}

// NLLLossGrad sets dst to the gradient of x, times dloss, which has an element for each row's loss
// or for the only one. It is 0 except for the labels' elements. Rows whose label is ignored or not
// a class are 0.
func NLLLossGrad[T Float, L Index](dst []T, labels []L, weights, dloss []T, e *plan.Entropy) {
	clear(dst)
	per := divisor(labels, weights, e)
	for i, label := range labels {
		if class, counts, bad := classOf(e, label); counts && !bad {
			dst[e.Start(i)+class*e.Inner] = T(-scaleOf(dloss, i, per, e) * orElse(weights, class, 1))
		}
	}
}
