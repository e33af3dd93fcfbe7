package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Permute returns x with its dimensions in another order; see [tensor.Runtime.Permute].
func (t *Tape) Permute(x *Variable, dims ...int) *Variable {
	dims = slices.Clone(dims) // the caller may write its list before Backward
	return t.Func("Permute", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return t.rt.Permute(t.ctx, c.Input(0), dims...)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		back := make([]int, len(dims))
		for i, d := range dims {
			if d < 0 {
				d += len(dims)
			}
			back[d] = i
		}
		return c.Grads(t.rt.Permute(t.ctx, g, back...))
	})
}

// Narrow returns length elements of x along a dimension, from start on; see [tensor.Runtime.Narrow]. All of them are x in the same memory, as of
// [Tape.Reshape].
func (t *Tape) Narrow(x *Variable, axis, start, length int) *Variable {
	if !t.begin("Narrow", x) {
		return t.inert()
	}
	if start == 0 {
		var room [6]int
		shape, at := tensor.AppendShape(room[:0], x.value), axis
		if at < 0 {
			at += len(shape)
		}
		if at >= 0 && at < len(shape) && length == shape[at] {
			return t.Reshape(x, shape...)
		}
	}
	n := t.narrows.take()
	n.axis, n.start, n.length = axis, start, length
	return t.apply("Narrow", n, &n.Call, []*Variable{x}, true)
}

// narrow is one use of Narrow.
type narrow struct {
	Call
	axis, start, length int
}

func (n *narrow) forward() (*tensor.Tensor, error) {
	return n.tape.rt.Narrow(n.tape.ctx, n.Input(0), n.axis, n.start, n.length)
}

func (n *narrow) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) {
	var room [3][6]int
	shape := tensor.AppendShape(room[0][:0], n.Input(0))
	before, after := append(room[1][:0], shape...), append(room[2][:0], shape...)
	clear(before)
	clear(after)
	axis := n.axis
	if axis < 0 {
		axis += len(shape)
	}
	before[axis], after[axis] = n.start, shape[axis]-n.start-n.length
	return n.Grads(n.tape.rt.Pad(n.tape.ctx, g, 0, before, after))
}

func (n *narrow) give(s *slab) { s.narrows.give(n) }

// Pad returns x inside of a larger tensor of value; see [tensor.Runtime.Pad].
func (t *Tape) Pad(x *Variable, value float64, before, after []int) *Variable {
	before, after = slices.Clone(before), slices.Clone(after) // the caller may write its lists before Backward
	return t.Func("Pad", []*Variable{x}, func(c *Call) (*tensor.Tensor, error) {
		return t.rt.Pad(t.ctx, c.Input(0), value, before, after)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		less := func(ns []int) []int {
			neg := make([]int, len(ns))
			for i, n := range ns {
				neg[i] = -n
			}
			return neg
		}
		return c.Grads(t.rt.Pad(t.ctx, g, 0, less(before), less(after)))
	})
}

// Cat joins variables along a dimension; see [tensor.Runtime.Cat].
func (t *Tape) Cat(axis int, vs ...*Variable) *Variable {
	return t.Func("Cat", vs, func(c *Call) (*tensor.Tensor, error) {
		parts := make([]*tensor.Tensor, len(c.inputs))
		for i, v := range c.inputs {
			parts[i] = v.value
		}
		return t.rt.Cat(t.ctx, axis, parts...)
	}, func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error) {
		grads := make([]*tensor.Tensor, len(c.inputs))
		at := 0
		for i, v := range c.inputs { // not vs, which the caller may write before Backward
			shape := v.value.Shape()
			n := shape[(axis+len(shape))%len(shape)]
			if c.NeedsGrad(i) {
				var err error
				if grads[i], err = t.rt.Narrow(t.ctx, g, axis, at, n); err != nil {
					return nil, err
				}
			}
			at += n
		}
		return grads, nil
	})
}

// Stack joins variables of one shape along a new dimension (torch.stack).
func (t *Tape) Stack(axis int, vs ...*Variable) *Variable {
	return t.Frame(func() *Variable {
		parts := make([]*Variable, len(vs))
		for i, v := range vs {
			parts[i] = t.Unsqueeze(v, axis)
		}
		return t.Cat(axis, parts...)
	})
}

// Unsqueeze returns x with a dimension of 1 before dimension axis, in the same memory (torch.unsqueeze).
func (t *Tape) Unsqueeze(x *Variable, axis int) *Variable {
	if !t.begin("Unsqueeze", x) {
		return t.inert()
	}
	shape, at := x.Shape(), axis
	if at < 0 {
		at += len(shape) + 1
	}
	if at < 0 || at > len(shape) {
		t.fail("Unsqueeze", fmt.Errorf("%w: %v has no place for dimension %d", tensor.ErrShape, shape, axis))
		return t.inert()
	}
	return t.Reshape(x, slices.Insert(shape, at, 1)...)
}
