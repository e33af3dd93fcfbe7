package reference

import "math"

// RecurrentGrad returns the gradients of [Recurrent] with respect to Inputs, to the products of the
// states including their bias, and to H and C. dy is the gradient of the states; dh and dc, (batch,
// n), are those of the last state and cell state.
func RecurrentGrad(r Recurring, dy, dh, dc Array) (inputs, hidden, h, c Array) {
	steps, batch, rows := r.Inputs.Shape[0], r.Inputs.Shape[1], r.Inputs.Shape[2]
	n := r.Weight.Shape[1]
	y, cells := Recurrent(r)
	inputs, hidden = newResult(r.Inputs.Shape).Array, newResult(r.Inputs.Shape).Array
	h = Array{Shape: []int{batch, n}, Data: append([]float64{}, dh.Data...)}
	c = Array{Shape: []int{batch, n}, Data: append([]float64{}, dc.Data...)}
	logistic := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	for s := steps - 1; s >= 0; s-- {
		at, before := s, s-1
		if r.Reverse {
			at, before = steps-1-s, steps-s
		}
		for b := range batch {
			states, memory := r.H.Data[b*n:][:n], r.C.Data[b*n:][:n]
			if s > 0 {
				states, memory = y.Data[(before*batch+b)*n:][:n], cells.Data[(before*batch+b)*n:][:n]
			}
			from := func(g, i int) float64 {
				sum := r.Bias.Data[g*n+i]
				for k, v := range states {
					sum += r.Weight.Data[(g*n+i)*n+k] * v
				}
				return sum
			}
			x, dx, dfrom := r.Inputs.Data[(at*batch+b)*rows:][:rows], inputs.Data[(at*batch+b)*rows:][:rows], hidden.Data[(at*batch+b)*rows:][:rows]
			// direct is the part of the previous state's gradient that does not come from the
			// products.
			direct := make([]float64, n)
			for i := range n {
				gate := func(g int) float64 { return logistic(x[g*n+i] + from(g, i)) }
				set := func(g int, d, part float64) { dx[g*n+i], dfrom[g*n+i] = d, d*part }
				d := dy.Data[(at*batch+b)*n+i] + h.Data[b*n+i]
				switch r.Kind {
				case "tanh":
					v := math.Tanh(x[i] + from(0, i))
					set(0, d*(1-v*v), 1)
				case "relu":
					if x[i]+from(0, i) > 0 {
						set(0, d, 1)
					}
				case "lstm":
					in, forget, cell, out := gate(0), gate(1), math.Tanh(x[2*n+i]+from(2, i)), gate(3)
					tanh := math.Tanh(cells.Data[(at*batch+b)*n+i])
					dcell := c.Data[b*n+i] + d*out*(1-tanh*tanh)
					set(0, dcell*cell*in*(1-in), 1)
					set(1, dcell*memory[i]*forget*(1-forget), 1)
					set(2, dcell*in*(1-cell*cell), 1)
					set(3, d*tanh*out*(1-out), 1)
					c.Data[b*n+i] = dcell * forget
				default:
					reset, update := gate(0), gate(1)
					fresh := math.Tanh(x[2*n+i] + reset*from(2, i))
					dfresh := d * (1 - update) * (1 - fresh*fresh)
					set(0, dfresh*from(2, i)*reset*(1-reset), 1)
					set(1, d*(states[i]-fresh)*update*(1-update), 1)
					set(2, dfresh, reset)
					direct[i] = d * update
				}
			}
			for k := range n {
				h.Data[b*n+k] = direct[k]
				for j, v := range dfrom {
					h.Data[b*n+k] += v * r.Weight.Data[j*n+k]
				}
			}
		}
	}
	return inputs, hidden, h, c
}
