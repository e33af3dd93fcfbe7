package reference

import "math"

// Recurring is a pass of a recurrent layer of n states over sequences. Kind is "tanh", "relu",
// "lstm" or "gru". Inputs is (steps, batch, gates n), Weight (gates n, n), Bias (gates n), and H
// and C are (batch, n).
type Recurring struct {
	Kind                       string
	Inputs, Weight, Bias, H, C Array
	Reverse                    bool
}

// Recurrent returns the states after each step, and an LSTM's cell states.
func Recurrent(r Recurring) (y, cells Array) {
	steps, batch, rows := r.Inputs.Shape[0], r.Inputs.Shape[1], r.Inputs.Shape[2]
	n := r.Weight.Shape[1]
	shape := []int{steps, batch, n}
	y, cells = newResult(shape).Array, newResult(shape).Array
	h, c := append([]float64{}, r.H.Data...), append([]float64{}, r.C.Data...)
	for s := range steps {
		at := s
		if r.Reverse {
			at = steps - 1 - s
		}
		next := make([]float64, len(h))
		for b := range batch {
			x := r.Inputs.Data[(at*batch+b)*rows:][:rows]
			hidden := func(g, i int) float64 {
				sum := r.Bias.Data[g*n+i]
				for k := range n {
					sum += r.Weight.Data[(g*n+i)*n+k] * h[b*n+k]
				}
				return sum
			}
			for i := range n {
				p := b*n + i
				pre := func(g int) float64 { return x[g*n+i] + hidden(g, i) }
				logistic := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
				switch r.Kind {
				case "tanh":
					next[p] = math.Tanh(pre(0))
				case "relu":
					next[p] = math.Max(0, pre(0))
				case "lstm":
					c[p] = logistic(pre(1))*c[p] + logistic(pre(0))*math.Tanh(pre(2))
					next[p] = logistic(pre(3)) * math.Tanh(c[p])
				default:
					z := logistic(pre(1))
					next[p] = (1-z)*math.Tanh(x[2*n+i]+logistic(pre(0))*hidden(2, i)) + z*h[p]
				}
			}
		}
		h = next
		copy(y.Data[at*batch*n:], h)
		copy(cells.Data[at*batch*n:], c)
	}
	return y, cells
}
