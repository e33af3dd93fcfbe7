package kernel

import "github.com/cistern-ml/cistern/internal/bfloat16"

// The logits of a large vocabulary are the largest tensor of a step. So those of bfloat16 are read where they are: one row at a time is there in float32, for
// each of the processors.

// CrossEntropyBFloat16 is CrossEntropy of bfloat16 logits.
func CrossEntropyBFloat16[L Label](loss []float32, logits []bfloat16.Number, labels []L, weights []float32, e Entropy, fault *Fault) {
	noteLabel(labels, &e, fault)
	if e.Each {
		split(len(labels), max(1, mathGrain()/max(1, e.Cols)), func(lo, hi int) {
			buf := make([]float32, e.Cols)
			for i := lo; i < hi; i++ {
				loss[i] = float32(surprise(wideRow(buf, logits, i, e.Rows), labels[i], weights, &e))
			}
		})
		return
	}
	var sums [parts]float64
	split(parts, max(1, mathGrain()*parts/max(1, len(logits))), func(lo, hi int) {
		buf := make([]float32, e.Cols)
		for p := lo; p < hi; p++ {
			sums[p] = sumOf(p*len(labels)/parts, (p+1)*len(labels)/parts, func(i int) float64 {
				return surprise(wideRow(buf, logits, i, e.Rows), labels[i], weights, &e)
			})
		}
	})
	loss[0] = float32(totalOf(&sums) / divisor(labels, weights, &e))
}

// CrossEntropyGradBFloat16 is CrossEntropyGrad of bfloat16 logits: each element of dst is rounded once.
func CrossEntropyGradBFloat16[L Label](dst, logits []bfloat16.Number, labels []L, weights, dloss []float32, e Entropy) {
	if len(dst) == 0 {
		return
	}
	per, spread := divisor(labels, weights, &e), spreadOf(weights, &e)
	split(len(labels), max(1, mathGrain()/e.Cols), func(lo, hi int) {
		var room exponentials
		buf := make([]float32, e.Cols)
		for i := lo; i < hi; i++ {
			class, counts, bad := classOf(&e, labels[i])
			if !counts || bad {
				clear(buf)
			} else {
				slopes(buf, wideRow(buf, logits, i, e.Rows), class, scaleOf(dloss, i, per, &e), spread, weights, &e, &room)
			}
			at := e.start(i)
			for j, v := range buf {
				dst[at+j*e.Inner] = bfloat16.Round(v)
			}
		}
	})
}

// wideRow is the elements of a row, in buf.
func wideRow(buf []float32, x []bfloat16.Number, i int, r Rows) []float32 {
	at := r.start(i)
	for j := range buf {
		buf[j] = x[at+j*r.Inner].Float32()
	}
	return buf
}
