package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// MatMul returns the product a b after torch.matmul's rules, of vectors, matrices and batches of
// matrices; [tensor.TransA] and [tensor.TransB] transpose the matrices of a factor, see
// [tensor.Layers.MatMul] for the shapes.
func (t *Tape) MatMul(a, b *Variable, options ...tensor.MatMulOption) *Variable {
	if !t.begin("MatMul", a, b) {
		return t.inert()
	}
	var all tensor.MatMulOption
	for _, o := range options {
		all |= o
	}
	if a.Rank() != 2 || b.Rank() != 2 {
		return t.matMulBatch(a, b, all)
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) { return t.rt.MatMul(t.ctx, a.value, b.value, all) })
	transA, transB := all&tensor.TransA != 0, all&tensor.TransB != 0
	saved := append(needed(b.needsGrad, a), needed(a.needsGrad, b)...)
	return t.push("MatMul", t.result("MatMul", y, err), []*Variable{a, b}, saved, func(n *Node, g *tensor.Tensor) {
		if b.needsGrad {
			x, y, tx, ty := a.value, g, !transA, false
			if transB {
				x, y, tx, ty = g, a.value, true, transA
			}
			d, err := t.rt.MatMul(t.ctx, x, y, transpose(tx, ty))
			n.done(a)
			t.give("MatMul", b, d, err)
		}
		if a.needsGrad && t.err == nil {
			x, y, tx, ty := g, b.value, false, !transB
			if transA {
				x, y, tx, ty = b.value, g, transB, true
			}
			d, err := t.rt.MatMul(t.ctx, x, y, transpose(tx, ty))
			t.give("MatMul", a, d, err)
		}
		t.free(g)
	})
}

// transpose is the options that transpose the first factor, the second, both or none.
func transpose(first, second bool) (o tensor.MatMulOption) {
	if first {
		o = tensor.TransA
	}
	if second {
		o |= tensor.TransB
	}
	return o
}

// AddBias returns x + bias for every row of x (rows, …, n); bias has n elements.
func (t *Tape) AddBias(x, bias *Variable) *Variable {
	if !t.begin("AddBias", x, bias) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		t.donate(x)
		return t.rt.AddBias(t.ctx, x.value, bias.value)
	})
	return t.push("AddBias", t.result("AddBias", y, err), []*Variable{x, bias}, nil, func(_ *Node, g *tensor.Tensor) {
		if bias.needsGrad {
			d, err := t.rt.SumTo(t.ctx, g, bias.value.Shape()...)
			t.give("AddBias", bias, d, err)
		}
		t.give("AddBias", x, g, nil)
	})
}

// Linear returns x wᵀ + b, the function of a dense layer, for x (rows, …, in), w (out, in) and b (out), which may
// be nil (torch.nn.functional.linear). The bias is added in place.
func (t *Tape) Linear(x, w, b *Variable) *Variable { return t.linear("Linear", x, w, b, false) }

// LinearReLU is Linear and then ReLU. Both bias and ReLU work in place on the product, so that the activation
// takes half the memory of the two calls.
func (t *Tape) LinearReLU(x, w, b *Variable) *Variable { return t.linear("LinearReLU", x, w, b, true) }

func (t *Tape) linear(op string, x, w, b *Variable, relu bool) *Variable {
	inputs := append(make([]*Variable, 0, 3), x, w)
	if b != nil {
		inputs = append(inputs, b)
	} else if relu {
		h := t.linear(op, x, w, nil, false)
		y := t.ReLU(h)
		h.Release()
		return y
	}
	if !t.begin(op, inputs...) {
		return t.inert()
	}
	if w.Rank() != 2 {
		t.fail(op, fmt.Errorf("%w %v: want weights (out, in)", tensor.ErrShape, w.Shape()))
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		switch {
		case b == nil:
			return t.rt.MatMul(t.ctx, x.value, w.value, tensor.TransB)
		case relu:
			return t.rt.LinearReLU(t.ctx, x.value, w.value, b.value)
		}
		return t.rt.Linear(t.ctx, x.value, w.value, b.value)
	})
	out := t.result(op, y, err)
	saved := make([]*Variable, 0, 3)
	if w.needsGrad {
		saved = append(saved, x)
	}
	if x.needsGrad {
		saved = append(saved, w)
	}
	if relu {
		t.push(op, out, inputs, append(saved, out), linearReLUBackward)
		if w.needsGrad && b.needsGrad {
			out.reluOf = w.value.Shape()[1]
		}
		return out
	}
	return t.push(op, out, inputs, saved, linearBackward)
}

func linearReLUBackward(n *Node, g *tensor.Tensor) {
	t := n.out.tape
	if n.out.masked {
		n.done(n.out)
		linearBackward(n, g)
		return
	}
	g = t.masked(n.op, g, n.out, n.in[2])
	n.done(n.out)
	productBackward(n, g)
}

func linearBackward(n *Node, g *tensor.Tensor) {
	t := n.out.tape
	b, w := n.in[2], n.in[1]
	if b == nil || !b.needsGrad {
		productBackward(n, g)
		return
	}
	if !w.needsGrad {
		var shape [1]int
		d, err := t.rt.SumTo(t.ctx, g, tensor.AppendShape(shape[:0], b.value)...)
		t.give(n.op, b, d, err)
		productBackward(n, g)
		return
	}
	dw, db, err := t.rt.LinearWeightGrad(t.ctx, g, n.in[0].value, true)
	n.done(n.in[0])
	t.give(n.op, w, dw, err)
	t.give(n.op, b, db, nil)
	inputBackward(n, g)
}

// productBackward gives the gradients of x wᵀ to both.
func productBackward(n *Node, g *tensor.Tensor) {
	t, x, w := n.out.tape, n.in[0], n.in[1]
	if w.needsGrad && t.err == nil {
		d, _, err := t.rt.LinearWeightGrad(t.ctx, g, x.value, false)
		n.done(x)
		t.give(n.op, w, d, err)
	}
	inputBackward(n, g)
}

// inputBackward gives x its gradient. Those of the weights and the bias are on their way to the other ranks meanwhile.
func inputBackward(n *Node, g *tensor.Tensor) {
	t, x, w := n.out.tape, n.in[0], n.in[1]
	if x.needsGrad && t.err == nil {
		var y *tensor.Tensor
		// That w is trained says that this step has saved x, and found it as it was: what nobody saved, such as a checkpoint's result, may have been overwritten.
		if x.reluOf > 0 && w.needsGrad && !x.value.Released() {
			y = x.value
		}
		d, masked, err := t.rt.LinearInputGrad(t.ctx, g, w.value, y, x.reluOf)
		masked = masked && (x.grad == nil || x.masked)
		t.give(n.op, x, d, err)
		x.masked = masked
	}
	t.free(g)
}

// outer is aᵀ b, of all rows of a and b.
func (t *Tape) outer(a, b *tensor.Tensor) (*tensor.Tensor, error) {
	if a.Rank() == 2 && b.Rank() == 2 {
		return t.rt.MatMul(t.ctx, a, b, tensor.TransA)
	}
	a, err := t.matrix(a)
	if err != nil {
		return nil, err
	}
	defer t.free(a)
	if b, err = t.matrix(b); err != nil {
		return nil, err
	}
	defer t.free(b)
	return t.rt.MatMul(t.ctx, a, b, tensor.TransA)
}

// matrix is another tensor with x's elements, as (rows, columns).
func (t *Tape) matrix(x *tensor.Tensor) (*tensor.Tensor, error) {
	shape := x.Shape()
	rows, last := 1, len(shape)-1
	for _, d := range shape[:last] {
		rows *= d
	}
	return t.rt.Reshape(t.ctx, x, rows, shape[last])
}

// masked is the gradient of ReLU's argument, in place if it can, and gives the bias in that its own. It takes g over.
func (t *Tape) masked(op string, g *tensor.Tensor, y, bias *Variable) *tensor.Tensor {
	var d, db *tensor.Tensor
	var err error
	if bias.needsGrad {
		d, db, err = t.rt.ReLUBiasGrad(t.ctx, inPlace(g), g, y.value)
	} else {
		d, err = t.rt.ApplyGrad(t.ctx, fn.ReLU, inPlace(g), g, y.value)
	}
	if err != nil {
		t.fail(op+" backward", err)
		return g
	}
	if d != g {
		t.free(g)
	}
	if db != nil {
		t.give(op, bias, db, nil)
	}
	return d
}

// Transpose returns x with two dimensions exchanged (torch.transpose); without dims, the transpose of the matrix x.
func (t *Tape) Transpose(x *Variable, dims ...int) *Variable {
	if !t.begin("Transpose", x) {
		return t.inert()
	}
	dims = slices.Clone(dims) // the caller may write its list before Backward
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) { return t.rt.Transpose(t.ctx, x.value, dims...) })
	return t.push("Transpose", t.result("Transpose", y, err), []*Variable{x}, nil, func(_ *Node, g *tensor.Tensor) {
		d, err := t.rt.Transpose(t.ctx, g, dims...)
		t.free(g)
		t.give("Transpose", x, d, err)
	})
}

// Reshape returns x with another shape, in the same memory. One dimension may be -1.
func (t *Tape) Reshape(x *Variable, shape ...int) *Variable {
	if !t.begin("Reshape", x) {
		return t.inert()
	}
	y, err := t.rt.Reshape(t.ctx, x.value, shape...)
	t.onlyComputes = true
	return t.push("Reshape", t.result("Reshape", y, err), []*Variable{x}, nil, reshapeBackward)
}

func reshapeBackward(n *Node, g *tensor.Tensor) {
	t, x := n.out.tape, n.in[0]
	var shape [8]int
	d, err := t.rt.Reshape(t.ctx, g, tensor.AppendShape(shape[:0], x.value)...)
	t.free(g)
	t.give("Reshape", x, d, err)
}
