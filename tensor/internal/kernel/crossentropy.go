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
// makes the loss NaN and is noted in fault.
func CrossEntropy[T Float](loss, logits []T, labels []int32, cols int, fault *Fault) {
	sum := 0.0
	for i, label := range labels {
		if uint32(label) >= uint32(cols) {
			if fault.Code == 0 {
				*fault = Fault{Code: FaultLabel, Row: int32(i), Got: label, Limit: int32(cols)}
			}
			sum = math.NaN()
			continue
		}
		row := logits[i*cols:][:cols]
		top, exps := logSum(row)
		sum += math.Log(exps) + top - float64(row[label])
	}
	loss[0] = T(sum / float64(len(labels)))
}

// CrossEntropyGrad sets dst to the gradient of the mean cross entropy with respect to the logits, times
// dloss[0]. Rows whose label is no class get 0: a bad label must not spoil the parameters.
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
			scaled := scale / exps
			for j, v := range row {
				out[j] = T(math.Exp(float64(v)-top) * scaled)
			}
			out[label] = T(math.Exp(float64(row[label])-top)*scaled - scale)
		}
	})
}
