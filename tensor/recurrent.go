package tensor

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor/internal/kernel"
)

// RecurrentKind is the computation of a recurrent layer's steps.
type RecurrentKind uint8

// The kinds of recurrent layers, with the numbers of their gates in the order of PyTorch's weights.
const (
	RNNTanh RecurrentKind = RecurrentKind(kernel.RNNTanh) // 1: h' = tanh(x + h)
	RNNReLU RecurrentKind = RecurrentKind(kernel.RNNReLU) // 1: h' = max(x + h, 0)
	LSTM    RecurrentKind = RecurrentKind(kernel.LSTM)    // 4: input, forget, cell, output
	GRU     RecurrentKind = RecurrentKind(kernel.GRU)     // 3: reset, update, new
)

// Recurrence holds the results of a pass over sequences, and the tensors that the gradient needs.
// The caller owns its tensors.
type Recurrence struct {
	// Y are the states after every step, (steps, batch, n).
	Y *Tensor
	// C are an LSTM's cell states, (steps, batch, n), or only the last one, (1, batch, n), without
	// forGrad. For the other kinds it is nil.
	C *Tensor
	// Gates is the tensor of the inputs, which the pass has overwritten.
	Gates *Tensor
	// New is the part of a GRU's new gate that comes from the state. It is nil without forGrad.
	New *Tensor
}

// Release releases the tensors that are not nil.
func (r Recurrence) Release(ctx context.Context) error {
	return releaseAll(ctx, r.Y, r.C, r.Gates, r.New)
}

// RecurrentWeights are the operands of a pass over sequences other than its inputs: the hidden
// weights (gates*n, n), their bias (gates*n) or nil, and the state before the first step, (batch,
// n), or nil for zeros. C0 is an LSTM's cell state.
type RecurrentWeights struct {
	Weight, Bias, H0, C0 *Tensor
}

// Recurrent runs a recurrent layer of one direction over sequences. Each step is a product and a
// kernel; on a GPU all steps of a small layer in float32 are one launch. inputs (steps, batch,
// gates*n) are the products of the layer's inputs with the input weights, with their bias.
// Recurrent overwrites them, and they belong to the result from then on. After an error the caller
// still owns inputs, and their elements are undefined. With reverse the pass begins at the last
// step. Without forGrad nothing is kept for [Gradients.RecurrentGrad].
func (l Layers) Recurrent(ctx context.Context, kind RecurrentKind, inputs *Tensor, w RecurrentWeights, reverse, forGrad bool) (Recurrence, error) {
	rt := l.rt
	const op = "Recurrent"
	in, err := rt.acquireFloats(op, present([]*Tensor{inputs, w.Weight}, w.Bias, w.H0, w.C0)...)
	if err != nil {
		return Recurrence{}, err
	}
	defer in.release()
	p, err := planRecurrent(op, kind, inputs, w, reverse)
	if err != nil {
		return Recurrence{}, err
	}
	kept, all := p.steps, Shape{p.steps, p.batch, p.size}
	if !forGrad {
		kept = 1
	}
	g := grads{rt: rt, ctx: ctx, op: op, dtype: inputs.dtype}
	r := Recurrence{Gates: inputs, Y: g.alloc(true, all), C: g.alloc(kind == LSTM, Shape{kept, p.batch, p.size}), New: g.alloc(kind == GRU && forGrad, all)}
	if g.err == nil && r.Y.bytes > 0 {
		inputs.overwritten()
		g.err = p.forward(ctx, rt, r, w)
	}
	if err := g.done(r.Y, r.C, r.New); err != nil {
		return Recurrence{}, err
	}
	return r, nil
}

// recurrentPlan is a pass over sequences.
type recurrentPlan struct {
	kind               kernel.Recurrent
	steps, batch, size int
	reverse            bool
}

func planRecurrent(op string, kind RecurrentKind, inputs *Tensor, w RecurrentWeights, reverse bool) (*recurrentPlan, error) {
	if kind > GRU {
		return nil, fmt.Errorf("tensor: %s: %w: kind %d", op, ErrInvalid, kind)
	}
	p := &recurrentPlan{kind: kernel.Recurrent(kind), reverse: reverse}
	gates := p.kind.Gates()
	if len(inputs.shape) != 3 || len(w.Weight.shape) != 2 || w.Weight.shape[0] != gates*w.Weight.shape[1] || inputs.shape[2] != w.Weight.shape[0] {
		return nil, fmt.Errorf("tensor: %s: %w: inputs %v and hidden weights %v: want (steps, batch, %d n) and (%[5]d n, n)", op, ErrShape, inputs.shape, w.Weight.shape, gates)
	}
	p.steps, p.batch, p.size = inputs.shape[0], inputs.shape[1], w.Weight.shape[1]
	if p.steps == 0 {
		return nil, fmt.Errorf("tensor: %s: %w: inputs %v: there is no step", op, ErrShape, inputs.shape)
	}
	if b := w.Bias; b != nil && !slices.Equal(b.shape, Shape{gates * p.size}) {
		return nil, fmt.Errorf("tensor: %s: %w: the bias is %v: want (%d)", op, ErrShape, b.shape, gates*p.size)
	}
	if w.C0 != nil && kind != LSTM {
		return nil, fmt.Errorf("tensor: %s: %w: a cell state is an LSTM's", op, ErrInvalid)
	}
	for _, s := range []*Tensor{w.H0, w.C0} {
		if s != nil && !slices.Equal(s.shape, Shape{p.batch, p.size}) {
			return nil, fmt.Errorf("tensor: %s: %w: the first state is %v: want (%d, %d)", op, ErrShape, s.shape, p.batch, p.size)
		}
	}
	return p, nil
}

// RecurrentGrads are the gradients of a pass over sequences. Inputs is the recurrence's Gates,
// overwritten, and still belongs to the recurrence.
type RecurrentGrads struct {
	// Inputs (steps, batch, gates*n) is the gradient of the inputs' products, and Hidden of the
	// states' products. They are the same tensor, except for a GRU.
	Inputs, Hidden *Tensor
	// H0 and, for an LSTM, C0 are the gradients of the state before the first step, (batch, n).
	H0, C0 *Tensor
}

// RecurrentGrad returns the gradients of [Layers.Recurrent]. dy is the gradient of Y; dh and dc are
// the gradients of the last state and cell state, and may be nil. The caller owns the results,
// except Inputs. The gradient of the hidden weights is the product of Hidden, transposed, and the
// states before each step. After an error the elements of r.Gates are undefined.
func (d Gradients) RecurrentGrad(ctx context.Context, kind RecurrentKind, r Recurrence, w RecurrentWeights, dy, dh, dc *Tensor, reverse bool) (g RecurrentGrads, err error) {
	rt := d.rt
	const op = "RecurrentGrad"
	in, err := rt.acquireFloats(op, present([]*Tensor{r.Gates, r.Y, w.Weight, dy}, r.C, r.New, w.H0, w.C0, dh, dc)...)
	if err != nil {
		return g, err
	}
	defer in.release()
	p, err := planRecurrent(op, kind, r.Gates, w, reverse)
	if err == nil {
		err = p.checkGrad(op, r, dy, dh, dc)
	}
	if err != nil {
		return g, err
	}
	all := grads{rt: rt, ctx: ctx, op: op, dtype: dy.dtype}
	hidden := all.alloc(kind == GRU, r.Gates.shape)
	g = RecurrentGrads{Inputs: r.Gates, Hidden: r.Gates, H0: all.alloc(true, dy.shape[1:]), C0: all.alloc(kind >= LSTM, dy.shape[1:])}
	if hidden != nil {
		g.Hidden = hidden
	}
	if all.err == nil && dy.bytes > 0 {
		r.Gates.overwritten()
		all.err = p.backward(ctx, rt, r, w, g, dy, dh, dc)
	}
	if all.err == nil && kind == GRU {
		all.err = g.C0.ReleaseContext(ctx)
		g.C0 = nil
	}
	if err := all.done(hidden, g.H0, g.C0); err != nil {
		return RecurrentGrads{}, err
	}
	return g, nil
}

func (p *recurrentPlan) checkGrad(op string, r Recurrence, dy, dh, dc *Tensor) error {
	all, one := Shape{p.steps, p.batch, p.size}, Shape{p.batch, p.size}
	fits := func(t *Tensor, shape Shape, wanted bool) bool {
		return t == nil && !wanted || t != nil && slices.Equal(t.shape, shape)
	}
	lstm, gru := p.kind == kernel.LSTM, p.kind == kernel.GRU
	if !fits(r.Y, all, true) || !fits(dy, all, true) || !fits(r.C, all, lstm) || !fits(r.New, all, gru) || !fits(dh, one, false) || !fits(dc, one, false) || dc != nil && !lstm {
		return fmt.Errorf("tensor: %s: %w: states %v, cell states %v, gradients %v, %v and %v: want what Recurrent keeps for a gradient, %v and %v",
			op, ErrShape, r.Y.Shape(), r.C.Shape(), dy.Shape(), dh.Shape(), dc.Shape(), all, one)
	}
	return nil
}
