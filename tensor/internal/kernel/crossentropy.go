package kernel

import (
	"math"

	"github.com/cistern-ml/cistern/tensor/backend/plan"
)

// classOf returns the class of a label. counts is false if the label is ignored, and bad is true if
// it is neither ignored nor a class.
func classOf[L Index](e *plan.Entropy, label L) (class int, counts, bad bool) {
	if int64(label) == e.Ignore {
		return 0, false, false
	}
	if outside(label, e.Cols) {
		return 0, true, true
	}
	return int(label), true, false
}

// CrossEntropy sets loss to the weighted -log softmax(logits)[label] of each row, or loss[0] to
// their sum or mean. weights may be nil. A label that is not a class makes the loss NaN, and the
// first such label is recorded in fault.
func CrossEntropy[T Float, E Logit, L Index](loss []T, logits []E, labels []L, weights []T, e *plan.Entropy, fault *plan.Fault) {
	note(fault, plan.FaultLabel, labels, e.Cols, func(label L) bool {
		_, _, bad := classOf(e, label)
		return bad
	})
	if e.Each {
		split(len(labels), max(1, mathGrain()/max(1, e.Cols)), func(lo, hi int) {
			buf := buffer[T](logits, e.Rows)
			for i := lo; i < hi; i++ {
				loss[i] = T(surprise(row(logits, i, e.Rows, buf), labels[i], weights, e))
			}
		})
		return
	}
	sum := sumOfParts(len(labels), max(1, mathGrain()*parts/max(1, len(logits))), func(lo, hi int) float64 {
		buf := buffer[T](logits, e.Rows)
		return sumOf(lo, hi, func(i int) float64 { return surprise(row(logits, i, e.Rows, buf), labels[i], weights, e) })
	})
	loss[0] = T(sum / divisor(labels, weights, e))
}

// divisor returns the number by which the sum of the losses is divided.
func divisor[T Float, L Index](labels []L, weights []T, e *plan.Entropy) float64 {
	if !e.Mean {
		return 1
	}
	return sumOf(0, len(labels), func(i int) float64 {
		switch class, counts, bad := classOf(e, labels[i]); {
		case !counts || bad && weights != nil:
			return 0
		default:
			return orElse(weights, class, 1)
		}
	})
}

// surprise returns the weighted -log softmax(row)[label], mixed according to the smoothing with the
// mean of that over all classes. It returns NaN if the label is not a class, and 0 if it is
// ignored. The logarithm is added last, because next to large logits it would be lost.
func surprise[T Float, L Index](row []T, label L, weights []T, e *plan.Entropy) float64 {
	class, counts, bad := classOf(e, label)
	switch {
	case !counts:
		return 0
	case bad:
		return math.NaN()
	}
	top, exps := logSum(row)
	less := math.Log(exps)
	own := orElse(weights, class, 1) * (top - float64(row[class]) + less)
	if e.Smoothing == 0 {
		return own
	}
	all := sumOf(0, len(row), func(j int) float64 { return orElse(weights, j, 1) * (top - float64(row[j]) + less) })
	return (1-e.Smoothing)*own + e.Smoothing/float64(e.Cols)*all
}

// narrow returns the nearest int32.
func narrow(v int64) int32 { return int32(min(max(v, math.MinInt32), math.MaxInt32)) }

// CrossEntropyGrad sets dst to the gradient of the logits, times dloss, which has an element for
// each row's loss or for the only one. dst may be the logits. Each element is rounded once. Rows
// whose label is ignored or not a class are set to 0, because a bad label must not make the
// parameters NaN.
func CrossEntropyGrad[T Float, E Logit, L Index](dst, logits []E, labels []L, weights, dloss []T, e *plan.Entropy) {
	if len(dst) == 0 {
		return
	}
	per, spread := divisor(labels, weights, e), spreadOf(weights, e)
	split(len(labels), max(1, mathGrain()/e.Cols), func(lo, hi int) {
		var room exponentials
		buf := buffer[T](logits, e.Rows)
		for i := lo; i < hi; i++ {
			class, counts, bad := classOf(e, labels[i])
			if !counts || bad {
				clearRow(dst, i, e.Rows)
				continue
			}
			in := row(logits, i, e.Rows, buf)
			out := rowOr(dst, i, e.Rows, in)
			slopes(out, in, class, scaleOf(dloss, i, per, e), spread, weights, e, &room)
			setRow(dst, i, e.Rows, out)
		}
	})
}

// clearRow sets a row to 0.
func clearRow[E Logit](dst []E, i int, r plan.Rows) {
	at := r.Start(i)
	for j := range r.Cols {
		dst[at+j*r.Inner] = 0
	}
}

// scaleOf returns the factor of the gradient of row i.
func scaleOf[T Float](dloss []T, i int, per float64, e *plan.Entropy) float64 {
	if e.Each {
		return float64(dloss[i])
	}
	return float64(dloss[0]) / per
}

// spreadOf returns the smoothing's share of the weights of all classes.
func spreadOf[T Float](weights []T, e *plan.Entropy) float64 {
	if e.Smoothing == 0 {
		return 0
	}
	return e.Smoothing / float64(e.Cols) * sumOf(0, e.Cols, func(j int) float64 { return orElse(weights, j, 1) })
}

// slopes sets out, which may be in, to the gradient of the row in.
func slopes[T Float](out, in []T, class int, scale, spread float64, weights []T, e *plan.Entropy, room *exponentials) {
	top := float64(greatest(in))
	exps, sum := expsOf(room, in, top, true)
	hit := scale * (1 - e.Smoothing) * orElse(weights, class, 1)
	own, scaled := float64(in[class]), (hit+scale*spread)/sum
	if e.Smoothing == 0 {
		scaleExps(out, in, exps, top, scaled)
		out[class] = T(math.Exp(own-top)*scaled - hit)
		return
	}
	even := scale * e.Smoothing / float64(e.Cols)
	for j, v := range in {
		out[j] = T(math.Exp(float64(v)-top)*scaled - even*orElse(weights, j, 1))
	}
	out[class] = T(math.Exp(own-top)*scaled - even*orElse(weights, class, 1) - hit)
}
