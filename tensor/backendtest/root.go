package backendtest

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

// rmspropTrial has means of squares that are well above the squares of means, as they are except
// for rounding.
func rmspropTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	tol := tolerance{terms: 64 * unit[T](), tiny: 1e-10}
	var updates []tensor.Update[tensor.RMSprop]
	var check []func()
	var s reference.RMSprop
	for i := range c.parameters() {
		if i == 0 || c.rand.IntN(3) == 0 {
			s = reference.RMSprop{LR: 0.1 + c.rand.Float64(), Alpha: 0.5 + 0.4*c.rand.Float64(), Eps: []float64{1e-3, 1e-8}[c.rand.IntN(2)],
				WeightDecay: []float64{0, 0.05}[c.rand.IntN(2)], Momentum: []float64{0, 0.9}[c.rand.IntN(2)], Maximize: c.rand.IntN(3) == 0}
		}
		shape := c.stepShape()
		p, g := c.operand(shape...), c.operand(shape...)
		u := tensor.Update[tensor.RMSprop]{Rule: tensor.RMSprop(s), P: p.Tensor, G: g.Tensor}
		var mean, buf *operand[T]
		var means, momentum *reference.Array
		squares := make([]T, len(p.data))
		for i := range squares {
			squares[i] = T(0.5 + math.Abs(float64(c.number())))
		}
		if c.rand.IntN(2) == 0 {
			mean = c.operand(shape...)
			u.State[1], means = mean.Tensor, new(mean.array())
			for i, m := range mean.data {
				squares[i] += m * m
			}
		}
		v := c.operandOf(squares, shape)
		u.State[0] = v.Tensor
		if c.rand.IntN(2) == 0 || s.Momentum != 0 {
			buf = c.operand(shape...)
			u.State[2] = buf.Tensor
		}
		if s.Momentum != 0 {
			momentum = new(buf.array())
		}
		wantP, wantV, wantMean, wantBuf := reference.StepRMSprop(s, p.array(), g.array(), v.array(), means, momentum)
		updates = append(updates, u)
		check = append(check, func() {
			p.became("StepRMSprop", wantP, tol)
			g.unchanged("StepRMSprop")
			v.became("StepRMSprop: the squares", wantV, tol)
			if mean != nil {
				mean.became("StepRMSprop: the means", wantMean, tol)
			}
			if momentum != nil {
				buf.became("StepRMSprop: the momentum", wantBuf, tol)
			} else if buf != nil {
				buf.unchanged("StepRMSprop")
			}
		})
	}
	require.NoError(c.t, tensor.Step(c.ctx, c.r.Runtime, updates))
	for _, f := range check {
		f()
	}
}

func adagradTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	tol := tolerance{terms: 16 * unit[T](), tiny: 1e-10}
	var updates []tensor.Update[tensor.Adagrad]
	var check []func()
	var s reference.Adagrad
	for i := range c.parameters() {
		if i == 0 || c.rand.IntN(3) == 0 {
			s = reference.Adagrad{LR: 0.1 + c.rand.Float64(), LRDecay: []float64{0, 0.3}[c.rand.IntN(2)], WeightDecay: []float64{0, 0.05}[c.rand.IntN(2)],
				Eps: []float64{1e-3, 1e-10}[c.rand.IntN(2)], Maximize: c.rand.IntN(3) == 0}
		}
		s := s
		s.Step = 1 + c.rand.IntN(4)
		shape := c.stepShape()
		p, g, sum := c.operand(shape...), c.operand(shape...), c.squares(shape)
		wantP, wantSum := reference.StepAdagrad(s, p.array(), g.array(), sum.array())
		updates = append(updates, tensor.Update[tensor.Adagrad]{Rule: tensor.Adagrad(s), P: p.Tensor, G: g.Tensor, State: [3]*tensor.Tensor{sum.Tensor}})
		check = append(check, func() {
			p.became("StepAdagrad", wantP, tol)
			g.unchanged("StepAdagrad")
			sum.became("StepAdagrad: the sums", wantSum, tol)
		})
	}
	require.NoError(c.t, tensor.Step(c.ctx, c.r.Runtime, updates))
	for _, f := range check {
		f()
	}
}

// gradients returns as many operands as parameters returns: small ones, and sometimes a large one.
func (c *trial[T]) gradients() (all []*operand[T], ts []*tensor.Tensor) {
	for range c.parameters() {
		shape := c.stepShape()
		if c.rand.IntN(4) == 0 {
			shape = c.shape()
		}
		o := c.operand(shape...)
		all, ts = append(all, o), append(ts, o.Tensor)
	}
	return all, ts
}

func clipNormTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	grads, ts := c.gradients()
	p := []float64{2, 1, math.Inf(1), 0, 3, 0.5}[c.rand.IntN(6)]
	var norms []float64
	for _, g := range grads {
		norms = append(norms, reference.Norm(p, g.array().Data))
	}
	norm := reference.Norm(p, norms)
	near := norm
	if math.IsNaN(norm) {
		near = 1
	}
	most := []float64{0, 0.01, 1, near * 0.7, near + 1, math.Inf(1)}[c.rand.IntN(6)]
	c.dirty()
	total, err := c.r.ClipNorm(c.ctx, most, p, ts...)
	if len(ts) == 0 {
		require.NoError(c.t, err)
		v, err := tensor.Item[float32](c.ctx, total)
		require.NoError(c.t, err)
		require.Zero(c.t, v)
		return
	}
	tol := tolerance{result: 4, terms: 256 * 0x1p-53}
	c.gave("ClipNorm", total, err, reference.Result{Array: reference.Array{Data: []float64{norm}}, Size: []float64{norm}}, tol)
	for _, g := range grads {
		if scale := most / (norm + 1e-6); !math.IsInf(most, 1) && !(scale >= 1) {
			g.became("ClipNorm", sized(reference.Unary(g.array(), func(v float64) float64 { return v * scale })), tol)
		} else {
			g.unchanged("ClipNorm")
		}
	}
}

// sized returns a result whose terms are as large as itself.
func sized(r reference.Result) reference.Result {
	for i, v := range r.Data {
		r.Size[i] = math.Abs(v)
	}
	return r
}

func clipValueTrial[T kernel.Float](c *trial[T]) {
	grads, ts := c.gradients()
	most := []float64{0, 0.5, 1, 1e29}[c.rand.IntN(4)]
	require.NoError(c.t, c.r.ClipValue(c.ctx, most, ts...))
	for _, g := range grads {
		g.became("ClipValue", reference.Unary(g.array(), func(v float64) float64 {
			m := float64(T(most))
			switch {
			case v > m:
				return m
			case v < -m:
				return -m
			}
			return v
		}), tolerance{result: 1})
	}
}
