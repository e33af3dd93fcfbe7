package reference

import "math"

// RMSprop holds the numbers of torch.optim.RMSprop.
type RMSprop struct {
	LR, Alpha, Eps, WeightDecay, Momentum float64
	Maximize                              bool
}

// StepRMSprop returns the parameters, the means of squares, the means, and the momentum after a
// step. means and momentum are nil if there are none.
func StepRMSprop(s RMSprop, p, g, squares Array, means, momentum *Array) (param, square, mean, buf Result) {
	param, square, mean, buf = newResult(p.Shape), newResult(p.Shape), newResult(p.Shape), newResult(p.Shape)
	for i, w := range p.Data {
		d, size := decayed(sign(s.Maximize)*g.Data[i], s.WeightDecay, w)
		v := s.Alpha*squares.Data[i] + (1-s.Alpha)*d*d
		square.Data[i], square.Size[i] = v, s.Alpha*math.Abs(squares.Data[i])+(1-s.Alpha)*size*size
		if means != nil {
			m := lerp(means.Data[i], d, 1-s.Alpha)
			mean.Data[i], mean.Size[i] = m, math.Abs(means.Data[i])+size
			v -= m * m
		}
		bottom := math.Sqrt(v) + s.Eps
		move, msize := d/bottom, size/bottom
		if momentum != nil {
			move += s.Momentum * momentum.Data[i]
			msize += math.Abs(s.Momentum * momentum.Data[i])
			buf.Data[i], buf.Size[i] = move, msize
		}
		param.Data[i], param.Size[i] = w-s.LR*move, math.Abs(w)+s.LR*msize
	}
	return param, square, mean, buf
}

// Adagrad holds the numbers of torch.optim.Adagrad.
type Adagrad struct {
	LR, LRDecay, WeightDecay, Eps float64
	Step                          int
	Maximize                      bool
}

// StepAdagrad returns the parameters and the sums of squares after a step.
func StepAdagrad(s Adagrad, p, g, squares Array) (param, sum Result) {
	param, sum = newResult(p.Shape), newResult(p.Shape)
	rate := s.LR / (1 + s.LRDecay*float64(s.Step-1))
	for i, w := range p.Data {
		d, size := decayed(sign(s.Maximize)*g.Data[i], s.WeightDecay, w)
		v := squares.Data[i] + d*d
		sum.Data[i], sum.Size[i] = v, squares.Data[i]+size*size
		bottom := math.Sqrt(v) + s.Eps
		param.Data[i], param.Size[i] = w-rate*d/bottom, math.Abs(w)+rate*size/bottom
	}
	return param, sum
}

// Norm returns the p-norm of all numbers, as torch.linalg.vector_norm does.
func Norm(p float64, x []float64) float64 {
	switch {
	case math.IsInf(p, 1):
		most := 0.0
		for _, v := range x {
			most = max(most, math.Abs(v))
		}
		return most
	case math.IsInf(p, -1):
		least := math.Inf(1)
		for _, v := range x {
			least = min(least, math.Abs(v))
		}
		return least
	case p == 0:
		n := 0.0
		for _, v := range x {
			if v != 0 {
				n++
			}
		}
		return n
	}
	var sum Sum
	for _, v := range x {
		sum.Add(math.Pow(math.Abs(v), p))
	}
	return math.Pow(sum.Value(), 1/p)
}

// Lion holds the numbers of the Lion optimiser.
type Lion struct {
	LR, Beta1, Beta2, WeightDecay float64
	Maximize                      bool
}

// StepLion returns the parameters and the momentum after a step. The sign of the direction depends
// on rounding where the direction is nearly 0, or below float32's range. sure is true for all other
// elements.
func StepLion(s Lion, p, g, m Array) (param, momentum Result, sure []bool) {
	param, momentum, sure = newResult(p.Shape), newResult(p.Shape), make([]bool, len(p.Data))
	for i, w := range p.Data {
		d := sign(s.Maximize) * g.Data[i]
		kept, added := s.Beta1*m.Data[i], (1-s.Beta1)*d
		u := kept + added
		sure[i] = math.Abs(u) > 1e-36+1e-6*(math.Abs(kept)+math.Abs(added)) || kept == 0 && added == 0 || u != u
		if u > 0 {
			u = 1
		} else if u < 0 {
			u = -1
		}
		// The decay of an infinite parameter is infinite too.
		param.Data[i] = w*(1-s.LR*s.WeightDecay) - s.LR*u
		param.Size[i] = math.Abs(w) + math.Abs(s.LR)*(1+math.Abs(s.WeightDecay*w))
		momentum.Data[i] = s.Beta2*m.Data[i] + (1-s.Beta2)*d
		momentum.Size[i] = math.Abs(s.Beta2*m.Data[i]) + math.Abs((1-s.Beta2)*d)
	}
	return param, momentum, sure
}
