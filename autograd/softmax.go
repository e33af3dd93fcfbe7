package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Softmax returns the softmax of x along an axis, which is the last dimension unless it is given (torch.softmax).
func (t *Tape) Softmax(x *Variable, axis ...int) *Variable {
	if !t.begin("Softmax", x) {
		return t.inert()
	}
	axis = slices.Clone(axis) // the caller may write its list before Backward
	y, err := t.rt.Softmax(t.ctx, x.value, axis...)
	out := t.result("Softmax", y, err)
	return t.push("Softmax", out, []*Variable{x}, []*Variable{out}, func(n *Node, g *tensor.Tensor) {
		d, err := t.rt.SoftmaxGrad(t.ctx, g, out.value, axis...)
		n.done(out)
		t.free(g)
		t.give("Softmax", x, d, err)
	})
}

// LogSoftmax returns the logarithm of Softmax (torch.log_softmax).
func (t *Tape) LogSoftmax(x *Variable, axis ...int) *Variable {
	axis = slices.Clone(axis) // the caller may write its list before Backward
	return t.Func("LogSoftmax", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		y, err := t.rt.LogSoftmax(t.ctx, c.Input(0), axis...)
		if err == nil {
			c.Save(y)
		}
		return y, err
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		return c.Grads(t.rt.LogSoftmaxGrad(t.ctx, g, c.Saved()[0], axis...))
	})
}
