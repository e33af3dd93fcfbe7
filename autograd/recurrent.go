package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// recurrence is one direction of one recurrent layer: the products of all inputs are one product, then each step is a
// product of the state and a kernel. Its results are the states, and besides the last of them, whose gradients wait for the
// backward step of the states.
type recurrence struct {
	kind             tensor.RecurrentKind
	reverse          bool
	x, wih, whh      *Variable
	bih, bhh, h0, c0 *Variable // or nil

	pass   tensor.Recurrence
	dh, dc *tensor.Tensor // of the last state
}

// inputs are those that there are.
func (r *recurrence) inputs() []*Variable {
	return slices.DeleteFunc([]*Variable{r.x, r.wih, r.whh, r.bih, r.bhh, r.h0, r.c0}, func(v *Variable) bool { return v == nil })
}

func (r *recurrence) weights() tensor.RecurrentWeights {
	return tensor.RecurrentWeights{Weight: r.whh.value, Bias: r.bhh.tensor(), H0: r.h0.tensor(), C0: r.c0.tensor()}
}

// recurrent is the states of every step (steps, batch, n); with last also the last state and an LSTM's last cell state,
// (batch, n).
func (t *Tape) recurrent(r *recurrence, last bool) (y, hn, cn *Variable) {
	op := [...]string{"RNN", "RNN", "LSTM", "GRU"}[r.kind]
	var cell *tensor.Tensor // the last cell state
	y = t.Func(op, r.inputs(), func(c *Call) (*tensor.Tensor, error) { return r.forward(t, c, last, &cell) }, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return r.backward(t, g)
	})
	if !last || y.value == nil {
		return y, t.inert(), t.inert()
	}
	at := y.Shape()[0] - 1
	if r.reverse {
		at = 0
	}
	end, err := t.row(y.value, at)
	hn = t.lastState(op, y, end, err, &r.dh)
	if r.kind == tensor.LSTM {
		cn = t.lastState(op, y, cell, nil, &r.dc)
	}
	return y, hn, cn
}

func (r *recurrence) forward(t *Tape, c *Call, last bool, cell **tensor.Tensor) (*tensor.Tensor, error) {
	products, err := t.rt.MatMul(t.ctx, r.x.value, r.wih.value, tensor.TransB)
	if err != nil {
		return nil, err
	}
	if r.bih != nil {
		err = t.rt.AddBiasInPlace(t.ctx, products, r.bih.value)
	}
	if err == nil {
		r.pass, err = t.rt.Recurrent(t.ctx, r.kind, products, r.weights(), r.reverse, c.NeedsGrads())
	}
	if err != nil {
		t.free(products)
		return nil, err
	}
	for _, v := range r.inputs() {
		c.Save(v.value)
	}
	c.Save(r.pass.Y, r.pass.Gates)
	for _, x := range []*tensor.Tensor{r.pass.C, r.pass.New} {
		if x != nil {
			c.Save(x)
		}
	}
	if r.pass.C != nil && last {
		at := r.pass.C.Shape()[0] - 1
		if r.reverse {
			at = 0
		}
		*cell, err = t.row(r.pass.C, at)
	}
	return r.pass.Y, err
}

// row is one of x's along its first dimension, in the same memory.
func (t *Tape) row(x *tensor.Tensor, i int) (*tensor.Tensor, error) {
	rows, err := t.rt.Rows(t.ctx, x, i, i+1)
	if err != nil {
		return nil, err
	}
	defer t.free(rows)
	return t.rt.Reshape(t.ctx, rows, x.Shape()[1:]...)
}

// lastState is another result of the operation whose result is y: its gradient waits in grad for y's backward step, which
// comes later, and has a gradient then.
func (t *Tape) lastState(op string, y *Variable, value *tensor.Tensor, err error, grad **tensor.Tensor) *Variable {
	return t.push(op, t.result(op, value, err), recorded(t, y), nil, func(_ *Node, g *tensor.Tensor) {
		*grad = g
		if y.grad == nil {
			zeros, err := t.rt.Zeros(t.ctx, g.Dtype(), y.value.Shape()...)
			t.give(op, y, zeros, err)
		}
	})
}

func (r *recurrence) backward(t *Tape, dy *tensor.Tensor) ([]*tensor.Tensor, error) {
	g, err := t.rt.RecurrentGrad(t.ctx, r.kind, r.pass, r.weights(), dy, r.dh, r.dc, r.reverse)
	t.free(r.dh)
	t.free(r.dc)
	if err != nil {
		return nil, err
	}
	var grads []*tensor.Tensor
	add := func(v *Variable, f func() (*tensor.Tensor, error)) {
		if v == nil {
			return
		}
		var d *tensor.Tensor
		if v.needsGrad && err == nil {
			d, err = f()
		}
		grads = append(grads, d)
	}
	add(r.x, func() (*tensor.Tensor, error) { return t.rt.MatMul(t.ctx, g.Inputs, r.wih.value) })
	add(r.wih, func() (*tensor.Tensor, error) { return t.outer(g.Inputs, r.x.value) })
	add(r.whh, func() (*tensor.Tensor, error) { return r.hiddenWeights(t, g.Hidden) })
	var bias *tensor.Tensor
	add(r.bih, func() (d *tensor.Tensor, err error) {
		bias, err = t.rt.SumTo(t.ctx, g.Inputs, r.bih.value.Shape()...)
		return bias, err
	})
	add(r.bhh, func() (*tensor.Tensor, error) {
		if bias != nil && g.Hidden == g.Inputs {
			return bias, nil
		}
		return t.rt.SumTo(t.ctx, g.Hidden, r.bhh.value.Shape()...)
	})
	add(r.h0, func() (*tensor.Tensor, error) { return t.rt.Share(t.ctx, g.H0) })
	add(r.c0, func() (*tensor.Tensor, error) { return t.rt.Share(t.ctx, g.C0) })
	if g.Hidden != g.Inputs {
		t.free(g.Hidden)
	}
	t.free(g.H0)
	t.free(g.C0)
	return grads, err
}

// hiddenWeights is the gradient of the hidden weights: one product of all steps but the first, whose state is h0, if
// there is one.
func (r *recurrence) hiddenWeights(t *Tape, d *tensor.Tensor) (*tensor.Tensor, error) {
	steps := d.Shape()[0]
	slopes, states, first := 1, 0, 0 // where each begins
	if r.reverse {
		slopes, states, first = 0, 1, steps-1
	}
	some, err := t.rt.Rows(t.ctx, d, slopes, slopes+steps-1)
	if err != nil {
		return nil, err
	}
	defer t.free(some)
	before, err := t.rt.Rows(t.ctx, r.pass.Y, states, states+steps-1)
	if err != nil {
		return nil, err
	}
	defer t.free(before)
	sum, err := t.outer(some, before)
	if err != nil || r.h0 == nil {
		return sum, err
	}
	slope, err := t.row(d, first)
	if err != nil {
		return nil, err
	}
	defer t.free(slope)
	own, err := t.outer(slope, r.h0.value)
	if err != nil {
		return nil, err
	}
	defer t.free(own)
	return sum, t.rt.AddInPlace(t.ctx, sum, own)
}

// recorded is the inputs that push sees of an operation that reads nothing itself: on a tape that records nothing, none.
func recorded(t *Tape, inputs ...*Variable) []*Variable {
	if t.record {
		return inputs
	}
	return nil
}
