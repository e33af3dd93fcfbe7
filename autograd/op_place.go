package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Permute returns x with its dimensions in another order; see [tensor.Runtime.Permute].
func (t *Tape) Permute(x *Variable, dims ...int) *Variable {
	return opPermute.Apply(t, permuted{newDimensions(dims)}, x)
}

type permuted struct{ dims dimensions }

var opPermute = newOp[permuted]("Permute")

func (p *permuted) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Permute(c.Context(), c.Input(0), p.dims.list()...)
}

func (p *permuted) Backward(c *Call, g *tensor.Tensor) error {
	dims := p.dims.list()
	back := make([]int, len(dims))
	for i, d := range dims {
		back[(d+len(dims))%len(dims)] = i
	}
	d, err := c.Runtime().Permute(c.Context(), g, back...)
	return c.GiveReplacing(0, g, d, err)
}

// Narrow returns length elements of x along a dimension, from start on; see
// [tensor.Runtime.Narrow]. If that is the whole dimension, the result is x in the same memory, as
// from [Tape.Reshape].
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
	return opNarrow.Apply(t, narrow{axis, start, length}, x)
}

// narrow is one use of Narrow.
type narrow struct{ axis, start, length int }

var opNarrow = newOp[narrow]("Narrow")

func (n *narrow) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Narrow(c.Context(), c.Input(0), n.axis, n.start, n.length)
}

func (n *narrow) Backward(c *Call, g *tensor.Tensor) error {
	var room [2][8]int
	shape := c.dims(c.Input(0))
	before, after := append(room[0][:0], shape...), append(room[1][:0], shape...)
	clear(before)
	clear(after)
	axis := (n.axis + len(shape)) % len(shape)
	before[axis], after[axis] = n.start, shape[axis]-n.start-n.length
	d, err := c.Runtime().Pad(c.Context(), g, 0, before, after)
	return c.GiveReplacing(0, g, d, err)
}

// Pad returns x inside of a larger tensor of value; see [tensor.Runtime.Pad].
func (t *Tape) Pad(x *Variable, value float64, before, after []int) *Variable {
	return opPad.Apply(t, padded{value, newDimensions(before), newDimensions(after)}, x)
}

type padded struct {
	value         float64
	before, after dimensions
}

var opPad = newOp[padded]("Pad")

func (p *padded) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Pad(c.Context(), c.Input(0), p.value, p.before.list(), p.after.list())
}

func (p *padded) Backward(c *Call, g *tensor.Tensor) error {
	before, after := p.before.list(), p.after.list()
	for i := range before {
		before[i] = -before[i]
	}
	for i := range after {
		after[i] = -after[i]
	}
	d, err := c.Runtime().Pad(c.Context(), g, 0, before, after)
	return c.GiveReplacing(0, g, d, err)
}

// Cat joins variables along a dimension; see [tensor.Runtime.Cat].
//
//go:noinline // as Add
func (t *Tape) Cat(axis int, vs ...*Variable) *Variable {
	return opCat.Apply(t, concatenation{axis}, vs...)
}

type concatenation struct{ axis int }

var opCat = newOp[concatenation]("Cat")

func (j *concatenation) Forward(c *Call) (*tensor.Tensor, error) {
	parts := make([]*tensor.Tensor, c.Inputs())
	for i := range parts {
		parts[i] = c.Input(i)
	}
	return c.Runtime().Cat(c.Context(), j.axis, parts...)
}

func (j *concatenation) Backward(c *Call, g *tensor.Tensor) error {
	at := 0
	for i := range c.Inputs() {
		shape := c.Input(i).Shape()
		n := shape[(j.axis+len(shape))%len(shape)]
		if c.NeedsGrad(i) {
			d, err := c.Runtime().Narrow(c.Context(), g, j.axis, at, n)
			if err := c.Give(i, d, err); err != nil {
				return err
			}
		}
		at += n
	}
	c.Free(g)
	return nil
}

// BroadcastTo returns x repeated to the given shape (torch.broadcast_to), in memory of its own.
func (t *Tape) BroadcastTo(x *Variable, shape ...int) *Variable {
	return opBroadcast.Apply(t, repeated{newDimensions(shape)}, x)
}

type repeated struct{ shape dimensions }

var opBroadcast = newOp[repeated]("BroadcastTo")

func (r *repeated) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().BroadcastTo(c.Context(), c.Input(0), r.shape.list()...)
}

// Backward gives g, which Give sums.
func (*repeated) Backward(c *Call, g *tensor.Tensor) error { return c.Give(0, g, nil) }

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

// Unsqueeze returns x with a dimension of 1 before dimension axis, in the same memory
// (torch.unsqueeze).
func (t *Tape) Unsqueeze(x *Variable, axis int) *Variable {
	if !t.begin("Unsqueeze", x) {
		return t.inert()
	}
	shape, at := x.Shape(), axis
	if at < 0 {
		at += len(shape) + 1
	}
	if at < 0 || at > len(shape) {
		t.fail("Unsqueeze", fmt.Errorf("%w: can't insert dimension %[3]d in %[2]v", tensor.ErrShape, shape, axis))
		return t.inert()
	}
	return t.Reshape(x, slices.Insert(shape, at, 1)...)
}
