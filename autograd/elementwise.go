package autograd

import (
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// Add returns a + b, broadcast after NumPy's rules.
func (t *Tape) Add(a, b *Variable) *Variable {
	if !t.begin("Add", a, b) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		t.donate(a)
		t.donate(b)
		return t.rt.Add(t.ctx, a.value, b.value)
	})
	out := t.result("Add", y, err)
	return t.push("Add", out, []*Variable{a, b}, nil, addBackward)
}

func addBackward(n *Node, g *tensor.Tensor) {
	t, a, b := n.out.tape, n.in[0], n.in[1]
	if a.needsGrad && b.needsGrad {
		shared, err := t.rt.Share(t.ctx, g)
		t.giveSummed("Add", a, shared, err)
		t.giveSummed("Add", b, g, nil)
		return
	}
	t.giveSummed("Add", either(a, b), g, nil)
}

// Sub returns a - b, broadcast after NumPy's rules.
func (t *Tape) Sub(a, b *Variable) *Variable {
	if !t.begin("Sub", a, b) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		t.donate(a)
		t.donate(b)
		return t.rt.Sub(t.ctx, a.value, b.value)
	})
	return t.push("Sub", t.result("Sub", y, err), []*Variable{a, b}, nil, subBackward)
}

func subBackward(n *Node, g *tensor.Tensor) {
	t, a, b := n.out.tape, n.in[0], n.in[1]
	if b.needsGrad {
		neg, err := t.rt.Neg(t.ctx, g)
		t.giveSummed("Sub", b, neg, err)
	}
	t.giveSummed("Sub", a, g, nil)
}

// Mul returns the elementwise product a * b, broadcast after NumPy's rules.
func (t *Tape) Mul(a, b *Variable) *Variable {
	if !t.begin("Mul", a, b) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		if !b.needsGrad {
			t.donate(a)
		}
		if !a.needsGrad {
			t.donate(b)
		}
		return t.rt.Mul(t.ctx, a.value, b.value)
	})
	saved := append(needed(a.needsGrad, b), needed(b.needsGrad, a)...)
	return t.push("Mul", t.result("Mul", y, err), []*Variable{a, b}, saved, func(n *Node, g *tensor.Tensor) {
		if a.needsGrad {
			d, err := t.rt.Mul(t.ctx, g, b.value)
			n.done(b)
			t.giveSummed("Mul", a, d, err)
		}
		if b.needsGrad && t.err == nil {
			d, err := t.rt.Mul(t.ctx, g, a.value)
			t.giveSummed("Mul", b, d, err)
		}
		t.free(g)
	})
}

// Div returns a / b, broadcast after NumPy's rules.
func (t *Tape) Div(a, b *Variable) *Variable {
	if !t.begin("Div", a, b) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		constant := !a.needsGrad && !b.needsGrad
		if constant || a != b {
			t.donate(a)
		}
		if constant {
			t.donate(b)
		}
		return t.rt.Div(t.ctx, a.value, b.value)
	})
	out := t.result("Div", y, err)
	saved := append(needed(true, b), needed(b.needsGrad, out)...)
	return t.push("Div", out, []*Variable{a, b}, saved, func(n *Node, g *tensor.Tensor) {
		d, err := t.rt.Div(t.ctx, g, b.value)
		n.done(b)
		t.free(g)
		if err == nil && b.needsGrad {
			var db *tensor.Tensor
			db, err = t.rt.Mul(t.ctx, d, out.value) // -g/b * a/b
			if err == nil {
				err = t.rt.MulScalarInPlace(t.ctx, db, -1)
			}
			t.giveSummed("Div", b, db, err)
		}
		t.giveSummed("Div", a, d, err)
	})
}

// Neg returns -x.
func (t *Tape) Neg(x *Variable) *Variable { return t.MulScalar(x, -1) }

// MulScalar returns x * c.
func (t *Tape) MulScalar(x *Variable, c float64) *Variable {
	if !t.begin("MulScalar", x) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		t.donate(x)
		return t.rt.MulScalar(t.ctx, x.value, c)
	})
	out := t.result("MulScalar", y, err)
	return t.push("MulScalar", out, []*Variable{x}, nil, func(_ *Node, g *tensor.Tensor) {
		g, err := t.scaled(g, c)
		t.give("MulScalar", x, g, err)
	})
}

// scaled multiplies a gradient by c, in place if it can, and takes it over.
func (t *Tape) scaled(g *tensor.Tensor, c float64) (*tensor.Tensor, error) {
	if g.Exclusive() {
		return g, t.rt.MulScalarInPlace(t.ctx, g, c)
	}
	d, err := t.rt.MulScalar(t.ctx, g, c)
	t.free(g)
	return d, err
}

// AddScalar returns x + c.
func (t *Tape) AddScalar(x *Variable, c float64) *Variable {
	if !t.begin("AddScalar", x) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		t.donate(x)
		return t.rt.AddScalar(t.ctx, x.value, c)
	})
	out := t.result("AddScalar", y, err)
	return t.push("AddScalar", out, []*Variable{x}, nil, func(_ *Node, g *tensor.Tensor) {
		t.give("AddScalar", x, g, nil)
	})
}

// PowScalar returns x to the power of c.
func (t *Tape) PowScalar(x *Variable, c float64) *Variable {
	if !t.begin("PowScalar", x) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		if !x.needsGrad {
			t.donate(x)
		}
		return t.rt.PowScalar(t.ctx, x.value, c)
	})
	return t.push("PowScalar", t.result("PowScalar", y, err), []*Variable{x}, []*Variable{x}, func(n *Node, g *tensor.Tensor) {
		if c == 0 { // as in PyTorch, whatever x and g are; else 0 * Inf
			zeros, err := t.rt.Zeros(t.ctx, x.value.Dtype(), x.value.Shape()...)
			t.free(g)
			t.give("PowScalar", x, zeros, err)
			return
		}
		slope, err := t.rt.PowScalar(t.ctx, x.value, c-1)
		n.done(x)
		if err == nil {
			err = t.rt.MulScalarInPlace(t.ctx, slope, c)
		}
		if err == nil {
			err = t.rt.MulInPlace(t.ctx, slope, g)
		}
		t.free(g)
		t.give("PowScalar", x, slope, err)
	})
}

// Exp returns e to the power of x.
func (t *Tape) Exp(x *Variable) *Variable { return t.Apply(fn.Exp, x) }

// Log returns the natural logarithm of x.
func (t *Tape) Log(x *Variable) *Variable { return t.Apply(fn.Log, x) }

// Tanh returns the hyperbolic tangent of x.
func (t *Tape) Tanh(x *Variable) *Variable { return t.Apply(fn.Tanh, x) }

// Sigmoid returns 1 / (1 + exp(-x)).
func (t *Tape) Sigmoid(x *Variable) *Variable { return t.Apply(fn.Sigmoid, x) }

// ReLU returns max(x, 0). The backward pass keeps the result, not x; its gradient at 0 is 0.
func (t *Tape) ReLU(x *Variable) *Variable { return t.Apply(fn.ReLU, x) }

// Sqrt returns the square root of x.
func (t *Tape) Sqrt(x *Variable) *Variable { return t.Apply(fn.Sqrt, x) }

// Square returns x * x.
func (t *Tape) Square(x *Variable) *Variable { return t.Apply(fn.Square, x) }

// Apply returns f of each element of x. The backward pass keeps either x or the result.
func (t *Tape) Apply(f fn.Function, x *Variable) *Variable {
	if !t.begin(f.Name, x) {
		return t.inert()
	}
	y, err := t.computeIfRead(func() (*tensor.Tensor, error) {
		if f.OfResult || !x.needsGrad {
			t.donate(x)
		}
		return t.rt.Apply(t.ctx, f, x.value)
	})
	out := t.result(f.Name, y, err)
	saved := x
	if f.OfResult {
		saved = out
	}
	before := len(t.nodes)
	t.push(f.Name, out, []*Variable{x}, []*Variable{saved}, applyBackward)
	if len(t.nodes) > before {
		t.nodes[before].fn = f
	}
	return out
}

func applyBackward(n *Node, g *tensor.Tensor) {
	t, saved := n.out.tape, n.saved[0].Variable
	d, err := t.rt.ApplyGrad(t.ctx, n.fn, inPlace(g), g, saved.value)
	n.done(saved)
	if d != g {
		t.free(g)
	}
	t.give(n.op, n.in[0], d, err)
}

func either(a, b *Variable) *Variable {
	if a.needsGrad {
		return a
	}
	return b
}

func needed(yes bool, v *Variable) []*Variable {
	if yes {
		return []*Variable{v}
	}
	return nil
}
