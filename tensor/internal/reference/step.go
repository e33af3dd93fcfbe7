package reference

import "math"

// SGD holds the numbers of torch.optim.SGD.
type SGD struct {
	LR, Momentum, Dampening, WeightDecay float64
	Nesterov, First, Maximize            bool
}

// StepSGD returns the parameters and the momentum after a step. buf is nil if there is no momentum.
func StepSGD(s SGD, p, g, buf Array) (param, momentum Result) {
	param, momentum = newResult(p.Shape), newResult(p.Shape)
	for i, w := range p.Data {
		d, size := decayed(sign(s.Maximize)*g.Data[i], s.WeightDecay, w)
		if s.Momentum != 0 {
			m, msize := d, size
			if !s.First {
				m = s.Momentum*buf.Data[i] + (1-s.Dampening)*d
				msize = math.Abs(s.Momentum*buf.Data[i]) + math.Abs(1-s.Dampening)*size
			}
			momentum.Data[i], momentum.Size[i] = m, msize
			if s.Nesterov {
				d, size = d+s.Momentum*m, size+s.Momentum*msize
			} else {
				d, size = m, msize
			}
		}
		param.Data[i], param.Size[i] = w-s.LR*d, math.Abs(w)+math.Abs(s.LR)*size
	}
	return param, momentum
}

// Adam holds the numbers of torch.optim.Adam, or of AdamW if the decay is decoupled.
type Adam struct {
	LR, Beta1, Beta2, Eps, WeightDecay float64
	Decoupled                          bool
	Step                               int
	Maximize                           bool
}

// StepAdam returns the parameters and both moments after a step, and the greatest second moments if
// tops is not nil.
func StepAdam(s Adam, p, g, m, v Array, tops *Array) (param, first, second, greatest Result) {
	param, first, second, greatest = newResult(p.Shape), newResult(p.Shape), newResult(p.Shape), newResult(p.Shape)
	t := float64(s.Step)
	for i, w := range p.Data {
		d := sign(s.Maximize) * g.Data[i]
		size := math.Abs(d)
		if s.Decoupled {
			w *= 1 - s.LR*s.WeightDecay
		} else {
			d, size = decayed(d, s.WeightDecay, w)
		}
		m1 := lerp(m.Data[i], d, 1-s.Beta1)
		m2 := s.Beta2*v.Data[i] + (1-s.Beta2)*d*d
		second.Data[i], second.Size[i] = m2, math.Abs(v.Data[i])+(1-s.Beta2)*math.Abs(d)*size
		terms := second.Size[i]
		if tops != nil {
			m2, terms = max(m2, tops.Data[i]), max(terms, math.Abs(tops.Data[i]))
			greatest.Data[i], greatest.Size[i] = m2, terms
		}
		root := math.Sqrt(m2 / (1 - math.Pow(s.Beta2, t)))
		bottom := root + s.Eps
		move := s.LR / (1 - math.Pow(s.Beta1, t)) / bottom
		first.Data[i], first.Size[i] = m1, math.Abs(m.Data[i])+size
		param.Data[i] = w - move*m1
		param.Size[i] = math.Abs(w) + math.Abs(move)*(math.Abs(m.Data[i])+size)
		if m2 > 0 && !math.IsInf(m2, 1) { // the root's relative error is half of its argument's
			param.Size[i] += math.Abs(move*m1) * root / bottom * terms / m2 / 2
		}
	}
	return param, first, second, greatest
}

// decayed returns the L2-regularized gradient and the magnitude of its terms. Like torch.optim, it
// leaves out a weight decay of 0.
func decayed(d, decay, w float64) (sum, size float64) {
	if decay == 0 {
		return d, math.Abs(d)
	}
	return d + decay*w, math.Abs(d) + math.Abs(decay*w)
}

// lerp is torch.lerp. Its formula depends on the weight, so that a weight of 1 returns end.
func lerp(start, end, weight float64) float64 {
	if math.Abs(weight) < 0.5 {
		return start + weight*(end-start)
	}
	return end - (end-start)*(1-weight)
}

func sign(maximize bool) float64 {
	if maximize {
		return -1
	}
	return 1
}
