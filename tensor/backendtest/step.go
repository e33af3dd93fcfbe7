package backendtest

import (
	"math"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/internal/kernel"
	"github.com/cistern-ml/cistern/tensor/internal/reference"
)

func stepOps[T kernel.Float]() []operation[T] {
	return []operation[T]{{"SGD", sgdTrial[T]}, {"Adam", adamTrial[T]}, {"RMSprop", rmspropTrial[T]}, {"Adagrad", adagradTrial[T]}, {"Lion", lionTrial[T]},
		{"ClipNorm", clipNormTrial[T]}, {"ClipValue", clipValueTrial[T]}}
}

// parameters returns how many parameters one step updates: sometimes more than a launch on a GPU
// takes.
func (c *trial[T]) parameters() int {
	if c.rand.IntN(8) == 0 {
		return 40 + c.rand.IntN(60)
	}
	return c.rand.IntN(4)
}

func sgdTrial[T kernel.Float](c *trial[T]) {
	// A sum that overflows may meet an infinite parameter: their difference is NaN where the
	// reference has an infinity. Numbers of kind limits do not overflow, and need the exact
	// infinities.
	tol := tolerance{terms: 8 * unit[T](), inside: 100, vague: c.kind == special}
	var updates []tensor.Update[tensor.SGD]
	var check []func()
	var s reference.SGD
	for i := range c.parameters() {
		if i == 0 || c.rand.IntN(3) == 0 { // otherwise the same as before
			s = reference.SGD{LR: 0.1 + c.rand.Float64(), Nesterov: c.rand.IntN(2) == 0, Maximize: c.rand.IntN(3) == 0}
			s.Momentum = []float64{0, 0.9}[c.rand.IntN(2)]
			s.Dampening = []float64{0, 0.3}[c.rand.IntN(2)]
			s.WeightDecay = []float64{0, 0.05}[c.rand.IntN(2)]
		}
		s := s
		s.First = c.rand.IntN(2) == 0
		shape := c.stepShape()
		p, g, buf := c.operand(shape...), c.operand(shape...), c.operand(shape...)
		param, momentum := reference.StepSGD(s, p.array(), g.array(), buf.array())
		u := tensor.Update[tensor.SGD]{Rule: tensor.SGD(s), P: p.Tensor, G: g.Tensor, State: [3]*tensor.Tensor{buf.Tensor}}
		if s.Momentum == 0 {
			u.State[0] = nil
		}
		updates = append(updates, u)
		check = append(check, func() {
			p.became("StepSGD", param, tol)
			g.unchanged("StepSGD")
			if s.Momentum == 0 {
				buf.unchanged("StepSGD")
			} else {
				buf.became("StepSGD: the momentum", momentum, tol)
			}
		})
	}
	require.NoError(c.t, tensor.Step(c.ctx, c.r.Runtime, updates))
	for _, f := range check {
		f()
	}
}

// stepShape returns a small shape, because there are many, and seldom one of more than a block of
// a GPU.
func (c *trial[T]) stepShape() []int {
	if c.widths {
		return []int{c.width()}
	}
	if c.rand.IntN(6) == 0 {
		return []int{1020 + c.rand.IntN(2000)}
	}
	return []int{1, 1 + c.rand.IntN(40), c.rand.IntN(4)}[:c.rand.IntN(4)]
}

// adamTrial has no numbers whose squares overflow or are 0, because the step divides by their root.
func adamTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	tol := tolerance{terms: 16 * unit[T](), tiny: 1e-10}
	var updates []tensor.Update[tensor.Adam]
	var check []func()
	var s reference.Adam
	for i := range c.parameters() {
		if i == 0 || c.rand.IntN(3) == 0 {
			s = reference.Adam{LR: 0.1 + c.rand.Float64(), Beta1: 0.5 + 0.4*c.rand.Float64(), Beta2: 0.9 + 0.09*c.rand.Float64(),
				Eps: []float64{1e-3, 1e-8}[c.rand.IntN(2)], WeightDecay: []float64{0, 0.05}[c.rand.IntN(2)], Decoupled: c.rand.IntN(2) == 0,
				Maximize: c.rand.IntN(3) == 0}
		}
		s := s
		s.Step = 1 + c.rand.IntN(4)
		shape := c.stepShape()
		p, g, m := c.operand(shape...), c.operand(shape...), c.operand(shape...)
		v := c.squares(shape)
		var top *operand[T]
		var tops *reference.Array
		if c.rand.IntN(2) == 0 {
			top = c.squares(shape)
			tops = new(top.array())
		}
		param, first, second, greatest := reference.StepAdam(s, p.array(), g.array(), m.array(), v.array(), tops)
		u := tensor.Update[tensor.Adam]{Rule: tensor.Adam(s), P: p.Tensor, G: g.Tensor, State: [3]*tensor.Tensor{m.Tensor, v.Tensor}}
		if top != nil {
			u.State[2] = top.Tensor
		}
		updates = append(updates, u)
		check = append(check, func() {
			p.became("StepAdam", param, tol)
			g.unchanged("StepAdam")
			m.became("StepAdam: the first moment", first, tol)
			v.became("StepAdam: the second moment", second, tol)
			if top != nil {
				top.became("StepAdam: the greatest second moment", greatest, tol)
			}
		})
	}
	require.NoError(c.t, tensor.Step(c.ctx, c.r.Runtime, updates))
	for _, f := range check {
		f()
	}
}

// squares returns an operand of numbers that are not negative.
func (c *trial[T]) squares(shape []int) *operand[T] {
	data := make([]T, elements(shape))
	for i := range data {
		data[i] = T(math.Abs(float64(c.number())))
	}
	return c.operandOf(data, shape)
}

func lionTrial[T kernel.Float](c *trial[T]) {
	c.notTooLarge()
	tol := tolerance{terms: 8 * unit[T](), inside: 100}
	var updates []tensor.Update[tensor.Lion]
	var check []func()
	s := reference.Lion{LR: 0.1 + c.rand.Float64(), Beta1: 0.9, Beta2: 0.99, WeightDecay: []float64{0, 0.05}[c.rand.IntN(2)], Maximize: c.rand.IntN(3) == 0}
	for range c.parameters() {
		shape := c.stepShape()
		p, g, m := c.operand(shape...), c.operand(shape...), c.operand(shape...)
		param, momentum, sure := reference.StepLion(s, p.array(), g.array(), m.array())
		if slices.Contains(sure, false) { // rounding decides a sign
			continue
		}
		updates = append(updates, tensor.Update[tensor.Lion]{Rule: tensor.Lion(s), P: p.Tensor, G: g.Tensor, State: [3]*tensor.Tensor{m.Tensor}})
		check = append(check, func() {
			p.became("StepLion", param, tol)
			g.unchanged("StepLion")
			m.became("StepLion: the momentum", momentum, tol)
		})
	}
	require.NoError(c.t, tensor.Step(c.ctx, c.r.Runtime, updates))
	for _, f := range check {
		f()
	}
}
