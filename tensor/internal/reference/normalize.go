package reference

import "math"

// Normalized is a normalisation. Each element of x belongs to a row, which is normalised, and has a
// weight.
type Normalized struct {
	Row, Weight   func(i int) int
	Rows, Weights int
	Eps           float64
	Centered      bool
	// Mean and Var, unless nil, replace each row's own statistics.
	Mean, Var []float64
}

// statistics returns each row's mean, its variance, the mean of its magnitudes (to which rounding
// errors of the mean are relative), and its number of elements.
func (n Normalized) statistics(x Array) (mean, variance, size, count []float64) {
	sums, squares := make([]Sum, n.Rows), make([]Sum, n.Rows)
	mean, variance = make([]float64, n.Rows), make([]float64, n.Rows)
	size, count = make([]float64, n.Rows), make([]float64, n.Rows)
	for i, v := range x.Data {
		sums[n.Row(i)].Add(v)
		count[n.Row(i)]++
	}
	for r := range mean {
		if n.Centered {
			mean[r] = sums[r].Value() / count[r]
			size[r] = sums[r].Size() / count[r]
		}
	}
	for i, v := range x.Data {
		d := v - mean[n.Row(i)]
		squares[n.Row(i)].AddProduct(d, d)
	}
	for r := range variance {
		variance[r] = squares[r].Value() / count[r]
	}
	return mean, variance, size, count
}

func (n Normalized) used(x Array) (mean, rstd, size, count []float64) {
	mean, variance, size, count := n.statistics(x)
	if n.Mean != nil {
		mean, variance = n.Mean, n.Var
		for r, m := range mean {
			size[r] = math.Abs(m)
		}
	}
	rstd = make([]float64, n.Rows)
	for r, v := range variance {
		rstd[r] = 1 / math.Sqrt(v+n.Eps)
	}
	return mean, rstd, size, count
}

// weight returns w[i], or standard if w has no elements.
func weight(w Array, i int, standard float64) float64 {
	if len(w.Data) == 0 {
		return standard
	}
	return w.Data[i]
}

// Forward returns the normalised x, times w, plus b. w and b may have no elements.
func (n Normalized) Forward(x, w, b Array) Result {
	r := newResult(x.Shape)
	mean, rstd, size, _ := n.used(x)
	for i, v := range x.Data {
		m, s := mean[n.Row(i)], rstd[n.Row(i)]
		f, a := weight(w, n.Weight(i), 1), weight(b, n.Weight(i), 0)
		z := (v - m) * s
		// The product is too small for float64, and the weight is infinite.
		if z == 0 && s > 0 && math.IsInf(f, 0) {
			z = v - m
		}
		// A fused product that overflows float64 stays finite if the bias is infinite.
		r.Data[i] = math.FMA(z, f, a)
		r.Size[i] = (math.Abs(v)+size[n.Row(i)])*s*math.Abs(f) + math.Abs(a)
	}
	return r
}

// Grads returns the gradients of x, w and b. Statistics that are not computed from x are constants.
func (n Normalized) Grads(dy, x, w Array, shape []int) (dx, dw, db Result) {
	mean, rstd, size, count := n.used(x)
	sums, dots := make([]Sum, n.Rows), make([]Sum, n.Rows)
	ws, bs := make([]Sum, n.Weights), make([]Sum, n.Weights)
	for i, g := range dy.Data {
		r, k := n.Row(i), n.Weight(i)
		z := (x.Data[i] - mean[r]) * rstd[r]
		sums[r].AddProduct(g, weight(w, k, 1))
		dots[r].AddProduct(g*weight(w, k, 1), z)
		ws[k].AddProduct(g, z)
		// z is a difference, so its rounding error is relative to the magnitudes of its operands.
		if rest := math.Abs(g) * (math.Abs(x.Data[i]) + size[r]) * rstd[r]; rest < math.Inf(1) {
			ws[k].size += rest
		}
		bs[k].Add(g)
	}
	dx = newResult(x.Shape)
	for i, g := range dy.Data {
		r := n.Row(i)
		z, f := (x.Data[i]-mean[r])*rstd[r], weight(w, n.Weight(i), 1)
		own, along, terms := sums[r].Value()/count[r], dots[r].Value()/count[r], sums[r].Size()/count[r]
		if !n.Centered {
			own, terms = 0, 0
		}
		terms += math.Abs(z) * dots[r].Size() / count[r]
		if n.Mean != nil {
			own, along, terms = 0, 0, 0
		}
		dx.Data[i] = rstd[r] * (g*f - own - z*along)
		if n.Mean != nil { // the statistics are constants
			dx.Data[i] = rstd[r] * g * f
		}
		dx.Size[i] = rstd[r] * (math.Abs(g*f) + terms)
	}
	return dx, resultOf(shape, ws), resultOf(shape, bs)
}

// Running returns the running statistics after a training step: the mean, and the variance without
// bias.
func (n Normalized) Running(x Array, mean, variance []float64, momentum float64) (newMean, newVar Result) {
	m, v, size, count := n.statistics(x)
	newMean, newVar = newResult([]int{n.Rows}), newResult([]int{n.Rows})
	for r := range m {
		newMean.Data[r] = (1-momentum)*mean[r] + momentum*m[r]
		newMean.Size[r] = math.Abs(mean[r]) + size[r]
		u := v[r] * count[r] / (count[r] - 1)
		newVar.Data[r] = (1-momentum)*variance[r] + momentum*u
		newVar.Size[r] = math.Abs(variance[r]) + u
	}
	return newMean, newVar
}
