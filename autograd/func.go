package autograd

import (
	"context"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Call is one use of an operation of the program's own, see [Tape.Func]: forward and backward share it. It belongs to the
// tape's goroutine, and is not used after backward has returned.
type Call struct {
	tape   *Tape
	name   string
	inputs []*Variable
	saved  []*tensor.Tensor // by Save
	own    []*tensor.Tensor // of saved: what the call releases
	op     operation

	room struct { // for the first of each, so that a call is one object of the Go heap
		inputs [4]*Variable
		saved  [6]*tensor.Tensor
		own    [2]*tensor.Tensor
		grads  [4]*tensor.Tensor
		dims   [4]int // of a shape, for a while
	}
}

// operation is what a call computes: the program's functions, or those of an operation of this package, whose record has a call in it.
type operation interface {
	forward() (*tensor.Tensor, error)
	backward(g *tensor.Tensor) ([]*tensor.Tensor, error)
	// give gives the record back when nobody needs the call any more.
	give(s *slab)
}

// programCall is a call of the program's functions. The program may hold it, so that it is new each time.
type programCall struct {
	Call
	do   func(*Call) (*tensor.Tensor, error)
	back func(*Call, *tensor.Tensor) ([]*tensor.Tensor, error)
}

func (f *programCall) forward() (*tensor.Tensor, error) {
	f.tape.calls++
	defer func() { f.tape.calls-- }()
	return f.do(&f.Call)
}

func (f *programCall) backward(g *tensor.Tensor) ([]*tensor.Tensor, error) { return f.back(&f.Call, g) }
func (f *programCall) give(*slab)                                          {}

// Context is the context for the operation's allocations: what it makes belongs to the tape, which frees at Close what
// nobody has released.
func (c *Call) Context() context.Context { return c.tape.ctx }

// Runtime is where the operation computes.
func (c *Call) Runtime() *tensor.Runtime { return c.tape.rt }

// Input is the value of an input. It stays the tape's. In backward it is there if forward has saved it.
func (c *Call) Input(i int) *tensor.Tensor { return c.inputs[i].value }

// NeedsGrad reports whether the gradient of an input is wanted: if not, backward may leave it nil, and forward need not
// save what it takes. On a tape of [NoGrad] no gradient is.
func (c *Call) NeedsGrad(i int) bool { return c.inputs[i].needsGrad }

// NeedsGrads reports whether any gradient is wanted.
func (c *Call) NeedsGrads() bool {
	return slices.ContainsFunc(c.inputs, func(v *Variable) bool { return v.needsGrad })
}

// Save keeps tensors for backward (ctx.save_for_backward), which finds them with Saved: inputs, the result, or others that
// forward made and that are the call's from now on. Nothing is kept when no gradient is wanted. An input or result that is
// overwritten in place before backward is an error that wraps [ErrStale].
func (c *Call) Save(ts ...*tensor.Tensor) { c.saved = append(c.saved, ts...) }

// Saved returns what Save kept, in that order.
func (c *Call) Saved() []*tensor.Tensor { return c.saved }

// Grads is what a backward function returns that computed one gradient: of the first input, or an error.
func (c *Call) Grads(g *tensor.Tensor, err error) ([]*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	c.room.grads[0] = g
	return c.room.grads[:1], nil
}

// Func is an operation of the program's own (torch.autograd.Function). forward computes the result from the inputs' values
// and saves what backward needs; the tape owns what it returns, which must be new or a view of its own ([tensor.Runtime.Share]).
// backward gets the gradient g of the result and returns one gradient for each input, of the input's shape or one that was
// broadcast from it; nil, or a slice that is too short, where there is none. g is backward's to write in place, if
// [tensor.Tensor.Exclusive], or to return, once or more; the tape releases it otherwise. backward may be nil: then
// the result has no gradient.
//
// The name stands in errors and profiles. An error of either function sticks to the tape, with the name, and so does
// what forward returns without a tensor. Both queue their work on the runtime's stream and don't wait for it; work that they launch
// themselves names its memory with [device.Launch]. What they make on their way they release.
//
// An operation that is a composition of others needs none of this: see [Tape.Frame].
func (t *Tape) Func(name string, inputs []*Variable, forward func(*Call) (*tensor.Tensor, error),
	backward func(c *Call, g *tensor.Tensor) ([]*tensor.Tensor, error)) *Variable {
	if forward == nil {
		t.fail(name, fmt.Errorf("%w: the forward function is nil", ErrInvalid))
	}
	if !t.begin(name, inputs...) {
		return t.inert()
	}
	f := &programCall{do: forward, back: backward}
	return t.apply(name, f, &f.Call, inputs, backward != nil)
}

// apply makes the call c of an operation that has begun.
func (t *Tape) apply(name string, op operation, c *Call, inputs []*Variable, differentiable bool) *Variable {
	c.tape, c.name, c.op = t, name, op
	c.inputs, c.saved, c.own = append(c.room.inputs[:0], inputs...), c.room.saved[:0], c.room.own[:0]
	y, err := op.forward()
	switch {
	case err != nil:
		t.free(y)
	case y == nil:
		err = fmt.Errorf("%w: forward returned no tensor", ErrInvalid)
	case slices.ContainsFunc(inputs, func(v *Variable) bool { return v.value == y }):
		err = fmt.Errorf("%w: forward returned an input: return a Share of it", ErrInvalid)
	}
	out := t.result(name, y, err)
	if out.value == nil || !t.record || !differentiable || !c.NeedsGrads() {
		c.drop(out)
		op.give(t.slab)
		t.spend(name, inputs)
		return out
	}
	var reads [4]*Variable
	t.note(name, out, inputs, c.keep(out, reads[:0]), c, callBackward)
	t.spend(name, inputs)
	return out
}

func callBackward(n *Node, g *tensor.Tensor) { n.call.backward(n, g) }

// keep sorts what was saved: variables of the tape, which it appends to reads, and tensors that are the call's own.
func (c *Call) keep(out *Variable, reads []*Variable) []*Variable {
	for _, s := range c.saved {
		i := slices.IndexFunc(c.inputs, func(v *Variable) bool { return v.value == s })
		switch {
		case s == out.value:
			reads = append(reads, out)
		case i >= 0:
			reads = append(reads, c.inputs[i])
		default:
			c.own = append(c.own, s)
		}
	}
	return reads
}

// drop releases what was saved for a backward step that will not come.
func (c *Call) drop(out *Variable) {
	c.keep(out, nil)
	c.release()
}

func (c *Call) release() {
	for _, s := range c.own {
		c.tape.free(s)
	}
	c.own, c.saved = nil, nil
}

// backward runs the program's function, and hands on what it returns.
func (c *Call) backward(n *Node, g *tensor.Tensor) {
	t := c.tape
	grads, err := c.op.backward(g)
	c.release()
	if err == nil && len(grads) > len(c.inputs) {
		err = fmt.Errorf("%w: backward returned %d gradients for %d inputs", ErrInvalid, len(grads), len(c.inputs))
	}
	if err != nil {
		t.fail(c.name+" backward", err)
		return
	}
	for i, d := range grads {
		if d == nil {
			continue
		}
		if v := c.inputs[i]; v.needsGrad && d.Dtype() != v.value.Dtype() {
			t.fail(c.name+" backward", fmt.Errorf("%w: the gradient of input %d, which is %v, is %v", tensor.ErrDtype, i+1, v.value.Dtype(), d.Dtype()))
			return
		}
		if slices.Contains(grads[i+1:], d) { // the last one gets the tensor itself
			d, err = t.rt.Share(t.ctx, d)
		}
		t.giveSummed(c.name, c.inputs[i], d, err)
	}
	if !slices.Contains(grads, g) {
		t.free(g)
	}
}

// giveSummed is give for a gradient that v's broadcast shape has.
func (t *Tape) giveSummed(op string, v *Variable, g *tensor.Tensor, err error) {
	if err == nil && v.needsGrad && !v.value.SameShape(g) {
		var sum *tensor.Tensor
		var shape [8]int
		sum, err = t.rt.SumTo(t.ctx, g, tensor.AppendShape(shape[:0], v.value)...)
		t.free(g)
		g = sum
	}
	t.give(op, v, g, err)
}
