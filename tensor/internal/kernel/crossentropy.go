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

// CrossEntropy sets loss[0] to the mean over rows of -log softmax(logits)[label]. A label that is no class
// makes the loss NaN, and the first one is noted in fault.
func CrossEntropy[T Float](loss, logits []T, labels []int32, cols int, fault *Fault) {
	const parts = 16 // a fixed number, so that the sum does not depend on the number of processors
	var sums [parts]float64
	split(parts, max(1, grainMath*parts/max(1, len(logits))), func(lo, hi int) {
		for p := lo; p < hi; p++ {
			sums[p] = sumOf(p*len(labels)/parts, (p+1)*len(labels)/parts, func(i int) float64 {
				return surprise(logits[i*cols:][:cols], labels[i])
			})
		}
	})
	sum := 0.0
	for _, s := range sums {
		sum += s
	}
	if math.IsNaN(sum) && fault.Code == 0 {
		noteLabel(labels, cols, fault)
	}
	loss[0] = T(sum / float64(len(labels)))
}

// surprise is -log softmax(row)[label], and NaN if the label is no class. The logarithm is added last: beside large
// logits it would be lost.
func surprise[T Float](row []T, label int32) float64 {
	if uint32(label) >= uint32(len(row)) {
		return math.NaN()
	}
	top, exps := logSum(row)
	return top - float64(row[label]) + math.Log(exps)
}

func noteLabel(labels []int32, cols int, fault *Fault) {
	for i, label := range labels {
		if uint32(label) >= uint32(cols) {
			*fault = Fault{Code: FaultLabel, Row: int32(i), Got: label, Limit: int32(cols)}
			return
		}
	}
}

// CrossEntropyGrad sets dst to the gradient of the mean cross entropy with respect to the logits, times
// dloss[0]. dst may be the logits. Rows whose label is no class get 0: a bad label must not spoil the parameters.
func CrossEntropyGrad[T Float](dst, logits []T, labels []int32, dloss []T, cols int) {
	if len(labels) == 0 || cols == 0 {
		return
	}
	scale := float64(dloss[0]) / float64(len(labels))
	split(len(labels), max(1, grainMath/cols), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			out, row := dst[i*cols:][:cols], logits[i*cols:][:cols]
			label := labels[i]
			if uint32(label) >= uint32(cols) {
				clear(out)
				continue
			}
			top, exps := logSum(row)
			own, scaled := float64(row[label]), scale/exps
			for j, v := range row {
				out[j] = T(math.Exp(float64(v)-top) * scaled)
			}
			out[label] = T(math.Exp(own-top)*scaled - scale)
		}
	})
}
