package kernel

import "math"

// Fault is what a kernel found wrong in the data it was given. It lives in device memory, next to the data,
// so that finding it costs the host nothing until the host reads a result anyway. Only the first fault is
// kept.
type Fault struct {
	Code       int32 // 0: none
	Row        int32
	Got, Limit int32
}

// FaultLabel is the code of a class label outside [0, Limit).
const FaultLabel = 1

// Entropy says which cross entropy: of rows of logits with one label each.
type Entropy struct {
	Rows
	Ignore    int64   // the label of rows that don't count
	Smoothing float64 // how much of the label is spread evenly over the classes
	Mean      bool    // over the weights of the labels that count
	Each      bool    // a loss for every row, in place of one
}

// Label are the types of labels.
type Label interface{ int32 | int64 }

// classOf tells what a label is: a class, ignored, or neither of these.
func classOf[L Label](e *Entropy, label L) (class int, counts, bad bool) {
	if int64(label) == e.Ignore {
		return 0, false, false
	}
	if label < 0 || int64(label) >= int64(e.Cols) {
		return 0, true, true
	}
	return int(label), true, false
}

// parts is a fixed number, so that sums do not depend on the number of processors.
const parts = 16

// CrossEntropy sets loss to the weighted -log softmax(logits)[label] of each row, or loss[0] to their sum or mean; weights may
// be nil. A label that is no class makes the loss NaN, and the first one is noted in fault.
func CrossEntropy[T Float, L Label](loss, logits []T, labels []L, weights []T, e Entropy, fault *Fault) {
	noteLabel(labels, &e, fault)
	if e.Each {
		split(len(labels), max(1, mathGrain()/max(1, e.Cols)), func(lo, hi int) {
			buf := buffer[T](e.Rows)
			for i := lo; i < hi; i++ {
				loss[i] = T(surprise(row(logits, i, e.Rows, buf), labels[i], weights, &e))
			}
		})
		return
	}
	var sums [parts]float64
	split(parts, max(1, mathGrain()*parts/max(1, len(logits))), func(lo, hi int) {
		buf := buffer[T](e.Rows)
		for p := lo; p < hi; p++ {
			sums[p] = sumOf(p*len(labels)/parts, (p+1)*len(labels)/parts, func(i int) float64 {
				return surprise(row(logits, i, e.Rows, buf), labels[i], weights, &e)
			})
		}
	})
	loss[0] = T(totalOf(&sums) / divisor(labels, weights, &e))
}

func totalOf(sums *[parts]float64) (sum float64) {
	for _, s := range sums {
		sum += s
	}
	return sum
}

// divisor is what the sum of the losses is divided by.
func divisor[T Float, L Label](labels []L, weights []T, e *Entropy) float64 {
	if !e.Mean {
		return 1
	}
	return sumOf(0, len(labels), func(i int) float64 {
		switch class, counts, bad := classOf(e, labels[i]); {
		case !counts || bad && weights != nil:
			return 0
		default:
			return orOne(weights, class)
		}
	})
}

// surprise is the weighted -log softmax(row)[label] and, with smoothing, the mean of that for all classes; NaN if the label
// is no class, and 0 if it is ignored. The logarithm is added last: beside large logits it would be lost.
func surprise[T Float, L Label](row []T, label L, weights []T, e *Entropy) float64 {
	class, counts, bad := classOf(e, label)
	switch {
	case !counts:
		return 0
	case bad:
		return math.NaN()
	}
	top, exps := logSum(row)
	less := math.Log(exps)
	own := orOne(weights, class) * (top - float64(row[class]) + less)
	if e.Smoothing == 0 {
		return own
	}
	all := sumOf(0, len(row), func(j int) float64 { return orOne(weights, j) * (top - float64(row[j]) + less) })
	return (1-e.Smoothing)*own + e.Smoothing/float64(e.Cols)*all
}

func noteLabel[L Label](labels []L, e *Entropy, fault *Fault) {
	if fault.Code != 0 {
		return
	}
	for i, label := range labels {
		if _, _, bad := classOf(e, label); bad {
			*fault = Fault{Code: FaultLabel, Row: narrow(int64(i)), Got: narrow(int64(label)), Limit: narrow(int64(e.Cols))}
			return
		}
	}
}

// narrow is the nearest int32.
func narrow(v int64) int32 { return int32(min(max(v, math.MinInt32), math.MaxInt32)) }

// CrossEntropyGrad sets dst to the gradient of the logits, times dloss, which is that of each row's loss or of the only one.
// dst may be the logits. Rows whose label is ignored or no class get 0: a bad label must not spoil the parameters.
func CrossEntropyGrad[T Float, L Label](dst, logits []T, labels []L, weights, dloss []T, e Entropy) {
	if len(dst) == 0 {
		return
	}
	per, spread := divisor(labels, weights, &e), spreadOf(weights, &e)
	split(len(labels), max(1, mathGrain()/e.Cols), func(lo, hi int) {
		var room exponentials
		buf := buffer[T](e.Rows)
		for i := lo; i < hi; i++ {
			class, counts, bad := classOf(&e, labels[i])
			if !counts || bad {
				clearRow(dst, i, e.Rows)
				continue
			}
			in := row(logits, i, e.Rows, buf)
			out := rowOr(dst, i, e.Rows, in)
			slopes(out, in, class, scaleOf(dloss, i, per, &e), spread, weights, &e, &room)
			setRow(dst, i, e.Rows, out)
		}
	})
}

// clearRow makes a row 0.
func clearRow[T Float](dst []T, i int, r Rows) {
	at := r.start(i)
	for j := range r.Cols {
		dst[at+j*r.Inner] = 0
	}
}

// scaleOf is what the gradient of row i is multiplied by.
func scaleOf[T Float](dloss []T, i int, per float64, e *Entropy) float64 {
	if e.Each {
		return float64(dloss[i])
	}
	return float64(dloss[0]) / per
}

// spreadOf is the weights of all classes, as the smoothing counts them.
func spreadOf[T Float](weights []T, e *Entropy) float64 {
	if e.Smoothing == 0 {
		return 0
	}
	return e.Smoothing / float64(e.Cols) * sumOf(0, e.Cols, func(j int) float64 { return orOne(weights, j) })
}

// slopes sets out, which may be in, to the gradient of the row in.
func slopes[T Float](out, in []T, class int, scale, spread float64, weights []T, e *Entropy, room *exponentials) {
	top := float64(greatest(in))
	exps, sum := expsOf(room, in, top, true)
	hit := scale * (1 - e.Smoothing) * orOne(weights, class)
	own, scaled := float64(in[class]), (hit+scale*spread)/sum
	if e.Smoothing == 0 {
		scaleExps(out, in, exps, top, scaled)
		out[class] = T(math.Exp(own-top)*scaled - hit)
		return
	}
	even := scale * e.Smoothing / float64(e.Cols)
	for j, v := range in {
		out[j] = T(math.Exp(float64(v)-top)*scaled - even*orOne(weights, j))
	}
	out[class] = T(math.Exp(own-top)*scaled - even*orOne(weights, class) - hit)
}
