package autograd

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// Recurrence is one direction of one recurrent layer (torch.nn.RNN, LSTM, GRU).
type Recurrence struct {
	Kind    tensor.RecurrentKind
	Reverse bool // from the last step to the first
	Last    bool // [Tape.Recurrent] returns the last states too

	X                  *Variable // (steps, batch, inputs)
	WeightIH, WeightHH *Variable // (gates*n, inputs), (gates*n, n)
	BiasIH, BiasHH     *Variable // (gates*n), or nil
	H0, C0             *Variable // the first states, (batch, n), or nil for zeros

	// Seen, whole numbers (steps, batch, 1), is 0 after the end of a row. There the inputs, which
	// must be finite, are not read, and an LSTM's cell state and a GRU's state stay. The other
	// states are undefined there, and must have no gradient. Nil: all steps are seen.
	Seen *Variable
}

// recurrence is the record of a [Recurrence]. One product covers all inputs. Then each step is a
// product of the state, and a kernel. The results are the states, and separately the last ones,
// whose gradients are kept for the backward step of the states.
type recurrence struct {
	Recurrence
	pass   tensor.Recurrence
	cell   *tensor.Tensor // the last cell state
	dh, dc *tensor.Tensor // of the last state
}

// inputs returns the sequence, the weights, and the optional inputs that are not nil.
func (r *recurrence) inputs() []*Variable {
	return withOptional([]*Variable{r.X, r.WeightIH, r.WeightHH}, r.BiasIH, r.BiasHH, r.H0, r.C0, r.Seen)
}

func (r *recurrence) weights() tensor.RecurrentWeights {
	return tensor.RecurrentWeights{Weight: r.WeightHH.value, Bias: r.BiasHH.Tensor(), H0: r.H0.Tensor(), C0: r.C0.Tensor()}
}

// Recurrent returns the states of every step (steps, batch, n) and, with Last, the last state and
// an LSTM's last cell state, (batch, n).
func (t *Tape) Recurrent(r Recurrence) (y, hn, cn *Variable) {
	if int(r.Kind) >= len(recurrentNames) {
		t.fail("Recurrent", fmt.Errorf("%w: kind %d", ErrInvalid, r.Kind))
		return t.inert(), t.inert(), t.inert()
	}
	op, all := recurrentNames[r.Kind], &recurrence{Recurrence: r}
	y = opRecurrent.applyAs(op, t, &recurrent{all}, all.inputs()...)
	if !r.Last || y.value == nil {
		return y, t.inert(), t.inert()
	}
	end, err := t.row(y.value, all.end(y.value))
	hn = t.lastState(op, y, lastState{end, err, &all.dh})
	if r.Kind == tensor.LSTM {
		cn = t.lastState(op, y, lastState{all.cell, nil, &all.dc})
	}
	return y, hn, cn
}

var recurrentNames = [...]string{"RNN", "RNN", "LSTM", "GRU"}

// recurrent is the operation of a recurrence. Its result is the states.
type recurrent struct{ *recurrence }

var opRecurrent = newOp[recurrent]("Recurrent")

// products returns the products of all inputs with the input weights, plus the bias.
func (r *recurrence) products(ctx context.Context, rt *tensor.Runtime) (*tensor.Tensor, error) {
	if r.BiasIH == nil {
		return rt.MatMul(ctx, r.X.value, r.WeightIH.value, tensor.TransB)
	}
	return rt.Linear(ctx, r.X.value, r.WeightIH.value, r.BiasIH.value)
}

// stopped are the gates' inputs after the end of a row: an LSTM's cell state stays and its state is
// 0, a GRU's state stays, an RNN's is ReLU's 0 or a tanh's -1. All slopes are 0 there, so that no
// gradient passes except that of the states that stay.
var stopped = [...][]float64{{-1e30}, {-1e30}, {-1e30, 1e30, 0, -1e30}, {0, 1e30, 0}}

// stop returns products with stopped values after the ends of rows, and frees products.
func (r *recurrence) stop(c *Call, products *tensor.Tensor) (*tensor.Tensor, error) {
	rt, ctx := c.Runtime(), c.Context()
	defer c.Free(products)
	var parts []*tensor.Tensor
	defer func() {
		for _, p := range parts {
			c.Free(p)
		}
	}()
	for _, v := range stopped[r.Kind] {
		p, err := rt.Full(ctx, v, products.Dtype(), r.WeightHH.value.Shape()[1])
		if err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	gates, err := rt.Cat(ctx, 0, parts...)
	if err != nil {
		return nil, err
	}
	defer c.Free(gates)
	y, err := rt.Where(ctx, r.Seen.value, products, gates)
	if err == nil && !y.SameShape(products) {
		defer c.Free(y)
		return nil, fmt.Errorf("%w: Seen is %v for inputs %v: want (steps, batch, 1)", tensor.ErrShape, r.Seen.Shape(), r.X.Shape())
	}
	return y, err
}

func (r *recurrent) Forward(c *Call) (*tensor.Tensor, error) {
	rt, ctx := c.Runtime(), c.Context()
	products, err := r.products(ctx, rt)
	if err == nil && r.Seen != nil {
		products, err = r.stop(c, products)
	}
	if err != nil {
		return nil, err
	}
	if r.pass, err = rt.Recurrent(ctx, r.Kind, products, r.weights(), r.Reverse, c.NeedsGrads()); err != nil {
		c.Free(products)
		return nil, err
	}
	for i := range c.Inputs() {
		c.Save(c.Input(i))
	}
	c.Save(r.pass.Y, r.pass.Gates)
	for _, x := range []*tensor.Tensor{r.pass.C, r.pass.New} {
		if x != nil {
			c.Save(x)
		}
	}
	if r.pass.C != nil && r.Last {
		r.cell, err = c.tape.row(r.pass.C, r.end(r.pass.C))
	}
	return r.pass.Y, err
}

// end returns the index of the last state.
func (r *recurrence) end(states *tensor.Tensor) int {
	if r.Reverse {
		return 0
	}
	return states.Shape()[0] - 1
}

// row returns x[i] of the first dimension, in the same memory.
func (t *Tape) row(x *tensor.Tensor, i int) (*tensor.Tensor, error) {
	rows, err := t.rt.Rows(t.ctx, x, i, i+1)
	if err != nil {
		return nil, err
	}
	defer t.free(rows)
	return t.rt.Reshape(t.ctx, rows, x.Shape()[1:]...)
}

// lastState is a further result of the recurrence that made the input. Backward stores its gradient
// in grad for the recurrence's step, which runs later, and gives the input zeros if it has no
// gradient.
type lastState struct {
	value *tensor.Tensor
	err   error
	grad  **tensor.Tensor
}

var opLastState = newOp[lastState]("LastState")

// lastState reads y only on a tape that records, because otherwise it would free y as its last
// reader.
func (t *Tape) lastState(op string, y *Variable, s lastState) *Variable {
	if !t.record {
		return opLastState.applyAs(op, t, &s)
	}
	return opLastState.applyAs(op, t, &s, y)
}

// Forward returns the state.
func (s *lastState) Forward(*Call) (*tensor.Tensor, error) { return s.value, s.err }

func (s *lastState) Backward(c *Call, g *tensor.Tensor) error {
	*s.grad = g
	if c.inputs[0].grad != nil {
		return nil
	}
	zeros, err := c.Runtime().Zeros(c.Context(), g.Dtype(), c.Input(0).Shape()...)
	return c.Give(0, zeros, err)
}

// Backward gives the inputs their gradients, in their order.
func (r *recurrent) Backward(c *Call, dy *tensor.Tensor) error {
	rt, ctx := c.Runtime(), c.Context()
	g, err := rt.RecurrentGrad(ctx, r.Kind, r.pass, r.weights(), dy, r.dh, r.dc, r.Reverse)
	c.Free(r.dh)
	c.Free(r.dc)
	c.Free(dy)
	if err != nil {
		return err
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
	var bias *tensor.Tensor
	add(r.X, func() (*tensor.Tensor, error) { return rt.MatMul(ctx, g.Inputs, r.WeightIH.value) })
	add(r.WeightIH, func() (*tensor.Tensor, error) { return c.outer(g.Inputs, r.X.value) })
	add(r.WeightHH, func() (*tensor.Tensor, error) { return r.hiddenWeights(c, g.Hidden) })
	add(r.BiasIH, func() (d *tensor.Tensor, err error) {
		bias, err = rt.SumTo(ctx, g.Inputs, r.BiasIH.value.Shape()...)
		return bias, err
	})
	add(r.BiasHH, func() (*tensor.Tensor, error) {
		if bias != nil && g.Hidden == g.Inputs {
			return rt.Share(ctx, bias)
		}
		return rt.SumTo(ctx, g.Hidden, r.BiasHH.value.Shape()...)
	})
	add(r.H0, func() (*tensor.Tensor, error) { return rt.Share(ctx, g.H0) })
	add(r.C0, func() (*tensor.Tensor, error) { return rt.Share(ctx, g.C0) })
	if g.Hidden != g.Inputs { // g.Inputs belongs to the call
		c.Free(g.Hidden)
	}
	c.Free(g.H0)
	c.Free(g.C0)
	c.doneOwn()
	for i, d := range grads {
		err = c.Give(i, d, err)
	}
	return err
}

// hiddenWeights returns the gradient of the hidden weights: one product of all steps except the
// first, and one of the first if there is an h0.
func (r *recurrence) hiddenWeights(c *Call, d *tensor.Tensor) (*tensor.Tensor, error) {
	rt, ctx := c.Runtime(), c.Context()
	steps := d.Shape()[0]
	slopes, states, first := 1, 0, 0 // where each begins
	if r.Reverse {
		slopes, states, first = 0, 1, steps-1
	}
	some, err := rt.Rows(ctx, d, slopes, slopes+steps-1)
	if err != nil {
		return nil, err
	}
	defer c.Free(some)
	before, err := rt.Rows(ctx, r.pass.Y, states, states+steps-1)
	if err != nil {
		return nil, err
	}
	defer c.Free(before)
	sum, err := c.outer(some, before)
	if err != nil || r.H0 == nil {
		return sum, err
	}
	slope, err := c.tape.row(d, first)
	if err != nil {
		return nil, err
	}
	defer c.Free(slope)
	own, err := c.outer(slope, r.H0.value)
	if err != nil {
		return nil, err
	}
	defer c.Free(own)
	return sum, rt.AddInPlace(ctx, sum, own)
}
