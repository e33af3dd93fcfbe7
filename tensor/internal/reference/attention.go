package reference

import "math"

// Attending holds the operands of an attention of single matrices: queries (l, e), keys (s, e),
// values (s, n), and Add (l, s), which is added to the scores and is -Inf for a key that the query
// does not see.
type Attending struct {
	Q, K, V, Add Array
	Scale        float64
}

// weights returns the weights of query i. size is the largest magnitude of the terms of a score
// with a weight other than 0.
func (a Attending) weights(i int) (w []float64, size float64) {
	s, e := a.K.Shape[0], a.K.Shape[1]
	top, sizes := math.Inf(-1), make([]float64, s)
	for j := range s {
		var sum Sum
		for x := range e {
			sum.AddProduct(a.Q.Data[i*e+x], a.K.Data[j*e+x])
		}
		score := sum.Value()*a.Scale + a.Add.Data[i*s+j]
		w = append(w, score)
		if !math.IsInf(score, -1) {
			sizes[j] = min(1e100, sum.Size()*math.Abs(a.Scale)+math.Abs(a.Add.Data[i*s+j]))
			top = max(top, score)
		}
	}
	var sum Sum
	for j, score := range w {
		w[j] = 0
		if !math.IsInf(score, -1) {
			w[j] = math.Exp(score - top)
		}
		if w[j] != 0 {
			size = max(size, sizes[j])
		}
		sum.Add(w[j])
	}
	for j := range w {
		if sum.Value() != 0 && !math.IsInf(a.Add.Data[i*s+j], -1) {
			w[j] /= sum.Value()
		}
	}
	return w, size
}

// Attention returns the result. An error in a score is one in its weight, so the sizes include a
// factor for the scores.
func Attention(a Attending) Result {
	l, s, n := a.Q.Shape[0], a.V.Shape[0], a.V.Shape[1]
	r := newResult([]int{l, n})
	for i := range l {
		w, size := a.weights(i)
		for c := range n {
			var sum Sum
			for j := range s {
				sum.AddProduct(w[j], a.V.Data[j*n+c])
			}
			r.Data[i*n+c], r.Size[i*n+c] = sum.Value(), sum.Size()*(1+size)
		}
	}
	return r
}

// AttentionGrad returns the gradients of the queries, keys, values and Add for a gradient dy of the
// result.
func AttentionGrad(a Attending, dy Array) (dq, dk, dv, dadd Result) {
	l, s, e, n := a.Q.Shape[0], a.K.Shape[0], a.K.Shape[1], a.V.Shape[1]
	dq, dk, dv, dadd = newResult(a.Q.Shape), newResult(a.K.Shape), newResult(a.V.Shape), newResult([]int{l, s})
	sum := func(r Result, at int, v, size float64) {
		r.Data[at] += v
		r.Size[at] += size
	}
	for i := range l {
		w, large := a.weights(i)
		slopes, sizes := make([]float64, s), make([]float64, s)
		mean, meanSize := 0.0, 0.0
		for j := range s {
			for c := range n {
				p := dy.Data[i*n+c] * a.V.Data[j*n+c]
				slopes[j] += p
				sizes[j] += math.Abs(p)
				if w[j] != 0 {
					sum(dv, j*n+c, w[j]*dy.Data[i*n+c], w[j]*math.Abs(dy.Data[i*n+c])*(1+large))
				}
			}
			mean += w[j] * slopes[j]
			meanSize += w[j] * sizes[j]
		}
		for j := range s {
			// The query does not see the key, whatever its other scores are.
			if math.IsInf(a.Add.Data[i*s+j], -1) {
				continue
			}
			slope, size := w[j]*(slopes[j]-mean), w[j]*(sizes[j]+meanSize)*(1+large)
			sum(dadd, i*s+j, slope, size)
			for x := range e {
				sum(dq, i*e+x, slope*a.Scale*a.K.Data[j*e+x], size*math.Abs(a.Scale*a.K.Data[j*e+x]))
				sum(dk, j*e+x, slope*a.Scale*a.Q.Data[i*e+x], size*math.Abs(a.Scale*a.Q.Data[i*e+x]))
			}
		}
	}
	return dq, dk, dv, dadd
}
