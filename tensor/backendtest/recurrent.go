package backendtest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// recurrence is a random pass over sequences.
type recurrence struct {
	reference.Recurring
	inputs  *tensor.Tensor
	weights tensor.RecurrentWeights
}

func (c *trial[T]) recurrence(kind tensor.RecurrentKind, steps, batch, n int) *recurrence {
	gates := kernel.Recurrent(kind).Gates()
	r := &recurrence{Recurring: reference.Recurring{Kind: []string{"tanh", "relu", "lstm", "gru"}[kind], Reverse: c.rand.IntN(2) == 0}}
	small := func(shape ...int) (*tensor.Tensor, reference.Array) {
		data := make([]T, elements(shape))
		for i := range data {
			data[i] = c.number() / T(4*n)
		}
		o := c.operandOf(data, shape)
		return o.Tensor, o.array()
	}
	inputs := c.operand(steps, batch, gates*n)
	r.inputs, r.Inputs = inputs.Tensor, inputs.array()
	w := &r.weights
	w.Weight, r.Weight = small(gates*n, n)
	w.Bias, r.Bias = small(gates * n)
	w.H0, r.H = small(batch, n)
	w.C0, r.C = small(batch, n)
	zeros := func(a reference.Array) reference.Array {
		return reference.Array{Shape: a.Shape, Data: make([]float64, len(a.Data))}
	}
	if c.rand.IntN(2) == 0 {
		w.Bias, r.Bias = nil, zeros(r.Bias)
	}
	if c.rand.IntN(2) == 0 {
		w.H0, r.H = nil, zeros(r.H)
	}
	if c.rand.IntN(2) == 0 || kind != tensor.LSTM {
		w.C0, r.C = nil, zeros(r.C)
	}
	return r
}

func besideOne(a reference.Array) reference.Result {
	res := reference.Result{Array: a, Size: make([]float64, len(a.Data))}
	for i, v := range a.Data {
		res.Size[i] = 1 + math.Abs(v)
	}
	return res
}

func recurrentTrial[T kernel.Float](c *trial[T]) {
	c.kind = ordinary
	for kind := range tensor.GRU + 1 {
		steps, batch, n := 1+c.rand.IntN(4), c.rand.IntN(20), 1+c.rand.IntN(20)
		if c.rand.IntN(40) == 0 {
			batch, n = 40, 60 // worth several goroutines
		}
		r := c.recurrence(kind, steps, batch, n)
		forGrad := c.rand.IntN(2) == 0
		c.dirty()
		got, err := c.r.Recurrent(c.ctx, kind, r.inputs, r.weights, r.Reverse, forGrad)
		y, cells := reference.Recurrent(r.Recurring)
		tol := tolerance{terms: 64 * float64(n+1) * unit[T]()}
		c.gave("the states", got.Y, err, besideOne(y), tol)
		if kind != tensor.LSTM {
			continue
		}
		if !forGrad { // only the last state is kept
			at := batch * n * (steps - 1)
			if r.Reverse {
				at = 0
			}
			cells = reference.Array{Shape: []int{1, batch, n}, Data: cells.Data[at:][:batch*n]}
		}
		c.gave("the cell states", got.C, err, besideOne(cells), tol)
	}
}

// recurrentGradTrial compares with finite differences of the results.
func recurrentGradTrial[T kernel.Float](c *trial[T]) {
	c.kind = ordinary
	for kind := range tensor.GRU + 1 {
		c.recurrentGrad(kind)
	}
}

func (c *trial[T]) recurrentGrad(kind tensor.RecurrentKind) {
	steps, batch, n := 1+c.rand.IntN(3), 1+c.rand.IntN(2), 1+c.rand.IntN(4)
	r := c.recurrence(kind, steps, batch, n)
	inputs := c.operandOf(numbersOf[T](r.Inputs.Data), r.Inputs.Shape)
	dy, dh, dc := c.operand(steps, batch, n), c.operand(batch, n), c.operand(batch, n)
	if c.rand.IntN(2) == 0 {
		dh = nil
	}
	if kind != tensor.LSTM || c.rand.IntN(2) == 0 {
		dc = nil
	}
	total := func() (sum float64) {
		y, cells := reference.Recurrent(r.Recurring)
		last := (steps - 1) * batch * n
		if r.Reverse {
			last = 0
		}
		for i, v := range dy.array().Data {
			sum += v * y.Data[i]
		}
		for i := range batch * n {
			if dh != nil {
				sum += dh.array().Data[i] * y.Data[last+i]
			}
			if dc != nil {
				sum += dc.array().Data[i] * cells.Data[last+i]
			}
		}
		return sum
	}
	gradient := func(of reference.Array) reference.Result {
		const h = 0x1p-17
		got := reference.Array{Shape: of.Shape, Data: make([]float64, len(of.Data))}
		for i, v := range of.Data {
			of.Data[i] = v + h
			up := total()
			of.Data[i] = v - h
			got.Data[i] = (up - total()) / (2 * h)
			of.Data[i] = v
		}
		return besideOne(got)
	}
	pass, err := c.r.Recurrent(c.ctx, kind, inputs.Tensor, r.weights, r.Reverse, true)
	require.NoError(c.t, err)
	c.dirty()
	g, err := c.r.RecurrentGrad(c.ctx, kind, pass, r.weights, dy.Tensor, dh.tensor(), dc.tensor(), r.Reverse)
	tol := tolerance{terms: 1e-8 + 256*float64(n+1)*unit[T]()}
	c.gave("the gradient of the inputs", g.Inputs, err, gradient(r.Inputs), tol)
	c.gave("that of the first state", g.H0, err, gradient(r.H), tol)
	if kind == tensor.LSTM {
		c.gave("that of the first cell state", g.C0, err, gradient(r.C), tol)
	}
}

// recurrentLayerTrial has sizes that one launch computes, and others near them. A second pass must
// give the same results. Its inputs are in the same memory, because a library of products may add
// in another order for another alignment.
func recurrentLayerTrial[T kernel.Float](c *trial[T]) {
	c.kind = ordinary
	for kind := range tensor.GRU + 1 {
		if kind == tensor.RNNReLU && c.narrow != 0 {
			continue // a rounding decides which slopes are 0
		}
		n := []int{4, 8, 36, 60, 64, 68, 80, 96, 100, 127, 128, 132}[c.rand.IntN(12)]
		steps, batch := 1+c.rand.IntN(6), 1+c.rand.IntN(3)
		if c.rand.IntN(8) == 0 {
			n, steps, batch = 4, 2, 4100 // more rows than a grid has blocks
		}
		c.recurrentLayer(c.recurrence(kind, steps, batch, n), kind, steps, batch, n)
	}
}

func (c *trial[T]) recurrentLayer(r *recurrence, kind tensor.RecurrentKind, steps, batch, n int) {
	dy := c.operand(steps, batch, n)
	last := func(wanted bool) (*tensor.Tensor, reference.Array) {
		if o := c.operand(batch, n); wanted && c.rand.IntN(2) == 0 {
			return o.Tensor, o.array()
		}
		return nil, reference.Array{Data: make([]float64, batch*n)}
	}
	dh, lastH := last(true)
	dc, lastC := last(kind == tensor.LSTM)
	y, cells := reference.Recurrent(r.Recurring)
	dinputs, dhidden, h0, c0 := reference.RecurrentGrad(r.Recurring, dy.array(), lastH, lastC)
	tol := tolerance{terms: 64 * float64(steps) * unit[T]()}
	var first [][]uint64
	for range 2 {
		c.write(r.inputs, numbersOf[T](r.Inputs.Data)) // a pass overwrites them
		c.dirty()
		pass, err := c.r.Recurrent(c.ctx, kind, r.inputs, r.weights, r.Reverse, true)
		c.gave("the states", pass.Y, err, besideOne(y), tol)
		if kind == tensor.LSTM {
			c.gave("the cell states", pass.C, err, besideOne(cells), tol)
		}
		c.dirty()
		g, err := c.r.RecurrentGrad(c.ctx, kind, pass, r.weights, dy.Tensor, dh, dc, r.Reverse)
		c.gave("the gradient of the inputs", g.Inputs, err, besideOne(dinputs), tol)
		c.gave("that of the states' products", g.Hidden, err, besideOne(dhidden), tol)
		c.gave("that of the first state", g.H0, err, besideOne(h0), tol)
		if kind == tensor.LSTM {
			c.gave("that of the first cell state", g.C0, err, besideOne(c0), tol)
		}
		var all [][]uint64
		for _, x := range []*tensor.Tensor{pass.Y, pass.C, g.Inputs, g.Hidden, g.H0, g.C0} {
			if x != nil {
				all = append(all, bits(c.elements(x)))
			}
		}
		if first == nil {
			first = all
		}
		require.Equal(c.t, first, all, "the second time")
	}
}

func numbersOf[T kernel.Float](data []float64) []T {
	all := make([]T, len(data))
	for i, v := range data {
		all[i] = T(v)
	}
	return all
}
