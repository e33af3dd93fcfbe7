package autograd

import (
	"github.com/cistern-ml/cistern/tensor"
	"github.com/cistern-ml/cistern/tensor/fn"
)

// Add returns a + b, broadcast after NumPy's rules.
//
//go:noinline // where other packages inline a generic call, its operands escape to the heap
func (t *Tape) Add(a, b *Variable) *Variable { return opAdd.Apply(t, add{}, a, b) }

type add struct{}

var opAdd = newOp[add]("Add")

func (*add) Saves(*Call) {}

func (*add) Forward(c *Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	c.Overwrite(1)
	return c.Runtime().Add(c.Context(), c.Input(0), c.Input(1))
}

func (*add) Backward(c *Call, g *tensor.Tensor) error {
	if !c.NeedsGrad(0) {
		return c.Give(1, g, nil)
	}
	if c.NeedsGrad(1) {
		shared, err := c.Runtime().Share(c.Context(), g)
		if err := c.Give(0, shared, err); err != nil {
			return err
		}
		return c.Give(1, g, nil)
	}
	return c.Give(0, g, nil)
}

// Sub returns a - b, broadcast after NumPy's rules.
//
//go:noinline // as Add
func (t *Tape) Sub(a, b *Variable) *Variable { return opSub.Apply(t, sub{}, a, b) }

type sub struct{}

var opSub = newOp[sub]("Sub")

func (*sub) Saves(*Call) {}

func (*sub) Forward(c *Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	c.Overwrite(1)
	return c.Runtime().Sub(c.Context(), c.Input(0), c.Input(1))
}

func (*sub) Backward(c *Call, g *tensor.Tensor) error {
	if c.NeedsGrad(1) {
		neg, err := c.Runtime().Neg(c.Context(), g)
		if err := c.Give(1, neg, err); err != nil {
			return err
		}
	}
	return c.Give(0, g, nil)
}

// Mul returns the elementwise product a * b, broadcast after NumPy's rules.
//
//go:noinline // as Add
func (t *Tape) Mul(a, b *Variable) *Variable { return opMul.Apply(t, mul{}, a, b) }

type mul struct{}

var opMul = newOp[mul]("Mul")

func (*mul) Saves(c *Call) { c.saveForOther() }

func (*mul) Forward(c *Call) (*tensor.Tensor, error) {
	if !c.NeedsGrad(1) {
		c.Overwrite(0)
	}
	if !c.NeedsGrad(0) {
		c.Overwrite(1)
	}
	return c.Runtime().Mul(c.Context(), c.Input(0), c.Input(1))
}

func (*mul) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx := c.Runtime(), c.Context()
	if c.NeedsGrad(0) {
		d, err := rt.Mul(ctx, g, c.Input(1))
		c.Done(1)
		if err := c.Give(0, d, err); err != nil {
			return err
		}
	}
	if c.NeedsGrad(1) {
		d, err := rt.Mul(ctx, g, c.Input(0))
		if err := c.Give(1, d, err); err != nil {
			return err
		}
	}
	c.Free(g)
	return nil
}

// saveForOther saves each of two inputs if the other one's gradient needs it, as a product's does.
func (c *Call) saveForOther() {
	if c.NeedsGrad(0) {
		c.Save(c.Input(1))
	}
	if c.NeedsGrad(1) {
		c.Save(c.Input(0))
	}
}

// Div returns a / b, broadcast after NumPy's rules.
//
//go:noinline // as Add
func (t *Tape) Div(a, b *Variable) *Variable { return opDiv.Apply(t, div{}, a, b) }

type div struct{}

var opDiv = newOp[div]("Div")

func (*div) Saves(c *Call) {
	c.Save(c.Input(1))
	if c.NeedsGrad(1) {
		c.Save(c.Result())
	}
}

func (*div) Forward(c *Call) (*tensor.Tensor, error) {
	a, b := c.Input(0), c.Input(1)
	if !c.NeedsGrads() || a != b {
		c.Overwrite(0)
	}
	if !c.NeedsGrads() {
		c.Overwrite(1)
	}
	return c.Runtime().Div(c.Context(), a, b)
}

func (*div) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx := c.Runtime(), c.Context()
	d, err := rt.Div(ctx, g, c.Input(1))
	c.Done(1)
	c.Free(g)
	if err == nil && c.NeedsGrad(1) {
		var db *tensor.Tensor
		if db, err = rt.Mul(ctx, d, c.Result()); err == nil { // -g/b * a/b
			err = rt.MulScalarInPlace(ctx, db, -1)
		}
		err = c.Give(1, db, err)
	}
	return c.Give(0, d, err)
}

// Neg returns -x.
func (t *Tape) Neg(x *Variable) *Variable { return t.MulScalar(x, -1) }

// MulScalar returns x * by.
//
//go:noinline // as Add
func (t *Tape) MulScalar(x *Variable, by float64) *Variable {
	return opMulScalar.Apply(t, mulScalar{by}, x)
}

type mulScalar struct{ by float64 }

var opMulScalar = newOp[mulScalar]("MulScalar")

func (*mulScalar) Saves(*Call) {}

func (m *mulScalar) Forward(c *Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	return c.Runtime().MulScalar(c.Context(), c.Input(0), m.by)
}

func (m *mulScalar) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.scaled(g, m.by)
	return c.Give(0, d, err)
}

// scaled multiplies a gradient by a number, in place if possible, and takes ownership of it.
func (c *Call) scaled(g *tensor.Tensor, by float64) (*tensor.Tensor, error) {
	if g.Exclusive() {
		return g, c.Runtime().MulScalarInPlace(c.Context(), g, by)
	}
	d, err := c.Runtime().MulScalar(c.Context(), g, by)
	c.Free(g)
	return d, err
}

// AddScalar returns x + a.
//
//go:noinline // as Add
func (t *Tape) AddScalar(x *Variable, a float64) *Variable {
	return opAddScalar.Apply(t, addScalar{a}, x)
}

type addScalar struct{ a float64 }

var opAddScalar = newOp[addScalar]("AddScalar")

func (*addScalar) Saves(*Call) {}

func (s *addScalar) Forward(c *Call) (*tensor.Tensor, error) {
	c.Overwrite(0)
	return c.Runtime().AddScalar(c.Context(), c.Input(0), s.a)
}

func (*addScalar) Backward(c *Call, g *tensor.Tensor) error { return c.Give(0, g, nil) }

// PowScalar returns x to the power of p.
//
//go:noinline // as Add
func (t *Tape) PowScalar(x *Variable, p float64) *Variable {
	return opPowScalar.Apply(t, powScalar{p}, x)
}

type powScalar struct{ p float64 }

var opPowScalar = newOp[powScalar]("PowScalar")

func (*powScalar) Saves(c *Call) { c.Save(c.Input(0)) }

func (s *powScalar) Forward(c *Call) (*tensor.Tensor, error) {
	if !c.NeedsGrad(0) {
		c.Overwrite(0)
	}
	return c.Runtime().PowScalar(c.Context(), c.Input(0), s.p)
}

func (s *powScalar) Backward(c *Call, g *tensor.Tensor) error {
	rt, ctx, x := c.Runtime(), c.Context(), c.Input(0)
	if s.p == 0 { // as in PyTorch, whatever x and g are; else 0 * Inf
		zeros, err := rt.Zeros(ctx, x.Dtype(), x.Shape()...)
		c.Free(g)
		return c.Give(0, zeros, err)
	}
	slope, err := rt.PowScalar(ctx, x, s.p-1)
	c.Done(0)
	if err == nil {
		err = rt.MulScalarInPlace(ctx, slope, s.p)
	}
	if err == nil {
		err = rt.MulInPlace(ctx, slope, g)
	}
	c.Free(g)
	return c.Give(0, slope, err)
}

// Apply returns f of each element of x. The backward pass keeps either x or the result.
//
//go:noinline // as Add
func (t *Tape) Apply(f fn.Function, x *Variable) *Variable {
	return opApply.applyAs(f.Name, t, &applied{f}, x)
}

type applied struct{ f fn.Function }

var opApply = newOp[applied]("Apply")

func (a *applied) Saves(c *Call) {
	if a.f.OfResult {
		c.Save(c.Result())
	} else {
		c.Save(c.Input(0))
	}
}

func (a *applied) Forward(c *Call) (*tensor.Tensor, error) {
	if a.f.OfResult || !c.NeedsGrad(0) {
		c.Overwrite(0)
	}
	return c.Runtime().Apply(c.Context(), a.f, c.Input(0))
}

func (a *applied) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().ApplyGrad(c.Context(), a.f, c.Reuse(g), g, c.Saved()[0])
	c.Done(0)
	c.DoneResult()
	return c.GiveReplacing(0, g, d, err)
}
