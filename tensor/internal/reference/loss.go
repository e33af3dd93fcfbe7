package reference

import "math"

// Loss is a function of an element x and a target t, with its derivatives with respect to x and t,
// and the magnitude of its terms.
type Loss struct {
	F, X, T func(x, t float64) float64
	Size    func(x, t float64) float64
}

// MSE is (x-t)².
func MSE() Loss {
	return Loss{
		F:    func(x, t float64) float64 { return math.Pow(x-t, 2) },
		X:    func(x, t float64) float64 { return 2 * (x - t) },
		T:    func(x, t float64) float64 { return -2 * (x - t) },
		Size: func(x, t float64) float64 { return math.Abs(x) + math.Abs(t) },
	}
}

// L1 is |x-t|.
func L1() Loss {
	slope := func(x, t float64) float64 {
		switch {
		case x > t:
			return 1
		case x < t:
			return -1
		}
		return x - t // 0 or NaN
	}
	return Loss{
		F: func(x, t float64) float64 { return math.Abs(x - t) }, X: slope,
		T:    func(x, t float64) float64 { return -slope(x, t) },
		Size: func(x, t float64) float64 { return math.Abs(x) + math.Abs(t) },
	}
}

// Huber is quadratic up to delta, and linear beyond.
func Huber(delta float64) Loss {
	slope := func(x, t float64) float64 { return math.Max(-delta, math.Min(delta, x-t)) }
	return Loss{
		F: func(x, t float64) float64 {
			if d := math.Abs(x - t); d < delta {
				return d * d / 2
			}
			return delta*math.Abs(x-t) - delta*delta/2
		},
		X: slope, T: func(x, t float64) float64 { return -slope(x, t) },
		Size: func(x, t float64) float64 { return math.Abs(x) + math.Abs(t) + delta },
	}
}

// BCE is -w(p·t·log σ(x) + (1-t)·log σ(-x)), computed with PyTorch's formulas, which differ where x
// or t is infinite. Without pos there is no p.
func BCE(w, p float64, pos bool) Loss {
	// minusLog is -log σ(x).
	minusLog := func(x float64) float64 {
		if x < 0 {
			return math.Log1p(Exp(x)) - x
		}
		return math.Log1p(Exp(-x))
	}
	return Loss{
		F: func(x, t float64) float64 {
			if !pos {
				return w * ((1-t)*x + minusLog(x))
			}
			return w * ((1-t)*x + (1+(p-1)*t)*minusLog(x))
		},
		X: func(x, t float64) float64 {
			if !pos {
				return w * (Sigmoid(x) - t)
			}
			return w * ((p*t+1-t)*Sigmoid(x) - p*t)
		},
		T: func(x, t float64) float64 {
			if !pos {
				return -w * x
			}
			return w * (p*minusLog(x) - minusLog(-x))
		},
		Size: func(x, t float64) float64 {
			return math.Abs(w) * (1 + math.Abs(p)) * (1 + math.Abs(t)) * (1 + math.Abs(x))
		},
	}
}

// KL is t·log(t/x̂), where x is the logarithm of x̂, and t log t is 0 for a t of 0. As in PyTorch,
// the derivative with respect to a t of 0 or infinity is NaN. With logs, t is a logarithm too.
func KL(logs bool) Loss {
	if logs {
		return Loss{
			F:    func(x, t float64) float64 { return Exp(t) * (t - x) },
			X:    func(_, t float64) float64 { return -Exp(t) },
			T:    func(x, t float64) float64 { return Exp(t)*(t-x) + Exp(t) },
			Size: func(x, t float64) float64 { return Exp(t) * (math.Abs(t) + math.Abs(x) + 1) },
		}
	}
	return Loss{
		F: func(x, t float64) float64 {
			if t == 0 {
				return -(t * x)
			}
			return t*Log(t) - t*x
		},
		X: func(_, t float64) float64 { return -t },
		T: func(x, t float64) float64 {
			if t == 0 || math.IsInf(t, 0) {
				return math.NaN()
			}
			return Log(t) + 1 - x
		},
		Size: func(x, t float64) float64 {
			all := math.Abs(x) + 1
			if t != 0 {
				all += math.Abs(Log(math.Abs(t)))
			}
			return (1 + math.Abs(t)) * all
		},
	}
}

// Entropy is a cross entropy of rows of logits, with all of its options.
type Entropy struct {
	Ignore    int64
	Smoothing float64
	Weights   []float64 // nil: 1
	Mean      bool
}

func (e Entropy) weight(class int) float64 {
	if e.Weights == nil {
		return 1
	}
	return e.Weights[class]
}

// total returns the divisor of the sum of the losses.
func (e Entropy) total(labels []int64, classes int) float64 {
	if !e.Mean {
		return 1
	}
	var total Sum
	for _, l := range labels {
		switch {
		case l == e.Ignore:
		case l >= 0 && l < int64(classes):
			total.Add(e.weight(int(l)))
		case e.Weights == nil:
			total.Add(1)
		}
	}
	return total.Value()
}

// blame returns the factor of each class's -log softmax in the loss of a row: the smoothing is
// spread evenly over all classes, the rest is the label's, and each is multiplied by the class's
// weight.
func (e Entropy) blame(label int64, classes int) []float64 {
	q := make([]float64, classes)
	for c := range q {
		q[c] = e.Smoothing / float64(classes) * e.weight(c)
	}
	q[label] += (1 - e.Smoothing) * e.weight(int(label))
	return q
}

// Losses returns the losses of all rows, and their sum over the divisor.
func (e Entropy) Losses(logits Array, labels []int64) (each Result, reduced Result) {
	each, reduced = newResult([]int{len(labels)}), newResult(nil)
	classes := logits.Shape[1]
	var sum Sum
	for i, l := range labels {
		switch {
		case l == e.Ignore:
			continue
		case l < 0 || l >= int64(classes):
			each.Data[i] = math.NaN()
			sum.Add(math.NaN())
			continue
		}
		row := logits.Data[i*classes : (i+1)*classes]
		top, exps := exps(row)
		var loss Sum
		for c, q := range e.blame(l, classes) {
			if q != 0 {
				v := (top - row[c]) + math.Log(exps)
				loss.AddProduct(q, v)
				each.Size[i] += math.Abs(q) * (v + 1)
			}
		}
		each.Data[i] = loss.Value()
		sum.Add(each.Data[i])
		reduced.Size[0] += each.Size[i]
	}
	total := e.total(labels, classes)
	reduced.Data[0] = sum.Value() / total
	reduced.Size[0] /= math.Abs(total)
	return each, reduced
}

// Grad returns the gradient of the logits. dloss has an element for each row's loss if each is set,
// otherwise one for all.
func (e Entropy) Grad(logits Array, labels []int64, dloss []float64, each bool) Result {
	r := newResult(logits.Shape)
	classes := logits.Shape[1]
	total := e.total(labels, classes)
	for i, l := range labels {
		if l == e.Ignore || l < 0 || l >= int64(classes) {
			continue
		}
		d := dloss[0] / total
		if each {
			d = dloss[i]
		}
		row := logits.Data[i*classes : (i+1)*classes]
		top, exps := exps(row)
		blame := e.blame(l, classes)
		var sum Sum
		for _, q := range blame {
			sum.Add(q)
		}
		all := sum.Value()
		for c, v := range row {
			p := math.Exp(v-top) / exps
			r.Data[i*classes+c] = d * (all*p - blame[c])
			r.Size[i*classes+c] = math.Abs(d) * (math.Abs(all)*p + math.Abs(blame[c]))
		}
	}
	return r
}

// Likelihoods returns the losses of rows of logarithms of probabilities, and their sum over the
// divisor.
func (e Entropy) Likelihoods(x Array, labels []int64) (each Result, reduced Result) {
	each, reduced = newResult([]int{len(labels)}), newResult(nil)
	classes := x.Shape[1]
	var sum Sum
	for i, l := range labels {
		switch {
		case l == e.Ignore:
			continue
		case l < 0 || l >= int64(classes):
			each.Data[i] = math.NaN()
		default:
			each.Data[i] = -e.weight(int(l)) * x.Data[i*classes+int(l)]
		}
		sum.Add(each.Data[i])
		each.Size[i] = math.Abs(each.Data[i])
		reduced.Size[0] += each.Size[i]
	}
	total := e.total(labels, classes)
	reduced.Data[0] = sum.Value() / total
	reduced.Size[0] /= math.Abs(total)
	return each, reduced
}

// LikelihoodGrad returns the gradient of x; dloss and each are as in Grad.
func (e Entropy) LikelihoodGrad(shape []int, labels []int64, dloss []float64, each bool) Result {
	r := newResult(shape)
	total := e.total(labels, shape[1])
	for i, l := range labels {
		if l == e.Ignore || l < 0 || l >= int64(shape[1]) {
			continue
		}
		d := dloss[0] / total
		if each {
			d = dloss[i]
		}
		at := i*shape[1] + int(l)
		r.Data[at] = -d * e.weight(int(l))
		r.Size[at] = math.Abs(r.Data[at])
	}
	return r
}
