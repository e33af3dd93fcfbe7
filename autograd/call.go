package autograd

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// Call is one use of an operation: its step's Forward and Backward share it. It belongs to the tape's goroutine, and to
// another use after Backward has returned.
type Call struct {
	tape   *Tape
	name   string
	step   Step
	kind   *kind
	record interface{ clear() } // that the call is in
	out    *Variable            // nil: Forward has not returned
	inputs []*Variable
	saved  []*tensor.Tensor // by Save
	own    []*tensor.Tensor // of saved: what the call releases

	room struct { // for the first of each, so that a call is one object of the Go heap
		inputs [4]*Variable
		saved  [6]*tensor.Tensor
		own    [2]*tensor.Tensor
		dims   [8]int // of a shape, for a while
		grads  [1]*tensor.Tensor
	}
}

// begin makes the call one on the tape.
func (c *Call) begin(t *Tape, name string, inputs []*Variable) {
	c.tape, c.name = t, name
	c.inputs, c.saved, c.own = append(c.room.inputs[:0], inputs...), c.room.saved[:0], c.room.own[:0]
}

// Context is the context for the operation's allocations: what it makes belongs to the tape, which frees at Close what
// nobody has released.
func (c *Call) Context() context.Context { return c.tape.ctx }

// Runtime is where the operation computes.
func (c *Call) Runtime() *tensor.Runtime { return c.tape.rt }

// Recomputing reports whether Forward runs again in the backward pass, for what was not kept.
func (c *Call) Recomputing() bool { return c.tape.recomputing }

// Inputs is how many inputs there are.
func (c *Call) Inputs() int { return len(c.inputs) }

// Input is the value of an input, or nil behind the last one. It stays the tape's. Backward reads the elements of saved ones
// alone.
func (c *Call) Input(i int) *tensor.Tensor {
	if i >= len(c.inputs) {
		return nil
	}
	return c.inputs[i].value
}

// Result is what Forward has returned. It stays the tape's. Backward reads its elements if it was saved.
func (c *Call) Result() *tensor.Tensor { return c.out.tensor() }

// NeedsGrad reports whether the gradient of an input is wanted: if not, Backward need not give it, nor be able to. On a
// tape of [NoGrad] no gradient is. Behind the last input there is none.
func (c *Call) NeedsGrad(i int) bool { return i < len(c.inputs) && c.inputs[i].needsGrad }

// NeedsGrads reports whether any gradient is wanted.
func (c *Call) NeedsGrads() bool {
	for _, v := range c.inputs {
		if v.needsGrad {
			return true
		}
	}
	return false
}

// Save keeps tensors for Backward (ctx.save_for_backward): inputs, the result, or others that Forward made and that are
// the call's from now on. Nothing is kept when no gradient is wanted. An input or result that is overwritten in place before
// Backward is an error that wraps [ErrStale].
func (c *Call) Save(ts ...*tensor.Tensor) { c.saved = append(c.saved, ts...) }

// Saved returns what Save kept, in that order.
func (c *Call) Saved() []*tensor.Tensor { return c.saved }

// dims is a tensor's shape, in room of the call's until the next one.
func (c *Call) dims(x *tensor.Tensor) []int { return tensor.AppendShape(c.room.dims[:0], x) }

// Overwrite lets the result take the memory of input i, if nobody reads that again. Backward must not read it. It comes right
// before the runtime's call that makes the result; see [tensor.Donate].
func (c *Call) Overwrite(i int) {
	if i < len(c.inputs) {
		c.tape.donate(c.inputs[i])
	}
}

// Reuse is g if nobody shares its memory, for a gradient that is computed in place of g; else nil.
func (c *Call) Reuse(g *tensor.Tensor) *tensor.Tensor {
	if g.Exclusive() {
		return g
	}
	return nil
}

// Give hands the gradient d on to input i and takes it over; nil is none. d has the input's shape, or one that the input's
// was broadcast to: then it is summed. With an error, which it returns, it gives nothing. If operations need the same
// gradient for two inputs they give a Share of it to one.
func (c *Call) Give(i int, d *tensor.Tensor, err error) error {
	switch {
	case err != nil || d == nil:
		return err
	case i < 0 || i >= len(c.inputs):
		return fmt.Errorf("%w: a gradient for input %d of %d", ErrInvalid, i+1, len(c.inputs))
	}
	t, v := c.tape, c.inputs[i]
	if v.needsGrad {
		if d.Dtype() != v.value.Dtype() {
			return fmt.Errorf("%w: the gradient of input %d, which is %v, is %v", tensor.ErrDtype, i+1, v.value.Dtype(), d.Dtype())
		}
		if !v.value.SameShape(d) {
			sum, err := t.rt.SumTo(t.ctx, d, c.dims(v.value)...)
			t.free(d)
			if err != nil {
				return err
			}
			d = sum
		}
	}
	t.give(c.name, v, d, nil)
	return t.err
}

// GiveReplacing is Give, and frees g, which Backward got, unless d has taken its place.
func (c *Call) GiveReplacing(i int, g, d *tensor.Tensor, err error) error {
	if d != g {
		c.Free(g)
	}
	return c.Give(i, d, err)
}

// onto takes the gradient that input i has so far, to be given again with more added to it in place; nil if there is none, or
// if it can't be added to in place.
func (c *Call) onto(i int) *tensor.Tensor {
	v := c.inputs[i]
	g := v.grad
	if !v.needsGrad || g == nil || !g.Exclusive() || g.Dtype() != v.value.Dtype() {
		return nil
	}
	if v.param != nil && g.Dtype().Wide() != 0 { // such gradients are added up in the wide dtype
		return nil
	}
	v.grad = nil
	return g
}

// Done ends the use of input i, if it was saved, before Backward returns: the last user frees it.
func (c *Call) Done(i int) {
	if i < len(c.inputs) {
		c.done(c.inputs[i])
	}
}

// DoneResult is Done of the result.
func (c *Call) DoneResult() { c.done(c.out) }

func (c *Call) done(v *Variable) { c.tape.current.done(v) }

// doneOwn frees what Save got of the call's own before Backward returns.
func (c *Call) doneOwn() {
	for _, s := range c.own {
		c.tape.free(s)
	}
	clear(c.own)
	c.own = c.own[:0]
}

// Free releases a tensor that the operation has made, or the gradient that Backward got.
func (c *Call) Free(x *tensor.Tensor) { c.tape.free(x) }

// sort splits the saved tensors: those of variables, which it appends to reads, and the call's own.
func (c *Call) sort(reads []*Variable) []*Variable {
	for _, s := range c.saved {
		if v := c.variable(s); v != nil {
			reads = append(reads, v)
		} else {
			c.own = append(c.own, s)
		}
	}
	return reads
}

// variable is the input or the result that has x; nil: none has it.
func (c *Call) variable(x *tensor.Tensor) *Variable {
	for _, v := range c.inputs {
		if v.value == x {
			return v
		}
	}
	if c.out != nil && c.out.value == x {
		return c.out
	}
	return nil
}

// end releases what is the call's own, and gives the record back for the next use.
func (c *Call) end() {
	c.doneOwn()
	if c.kind == nil || c.kind.fresh {
		c.saved = nil
		return
	}
	s := c.tape.slab
	clear(c.room.inputs[:])
	clear(c.room.saved[:])
	clear(c.room.own[:])
	c.tape, c.out, c.inputs, c.saved, c.own = nil, nil, nil, nil, nil
	c.room.grads[0] = nil
	c.record.clear()
	s.records.give(c)
}
