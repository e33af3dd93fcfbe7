package autograd

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/cistern-ml/cistern/tensor"
)

// Step computes an operation and its gradient. The receiver is a record of the operation's options,
// in which Forward may store more for Backward. It is valid from Forward to the end of Backward;
// later uses reuse it.
//
// Both methods queue their work on the runtime's stream and do not wait. Kernels that they launch
// themselves name their memory with [device.Launch]. They free their temporary tensors. An error
// sticks to the tape, with the operation's name.
type Step interface {
	// Forward computes the result from the inputs' values and saves the tensors that Backward needs
	// ([Call.Save]). It returns a new tensor, or a view of its own ([tensor.Runtime.Share]), which
	// the tape owns.
	Forward(c *Call) (*tensor.Tensor, error)
	// Backward takes ownership of g, the gradient of the result, and gives a gradient to each input
	// that needs one ([Call.Give]). It gives those of weights first, because ranks exchange them
	// while it computes the others.
	Backward(c *Call, g *tensor.Tensor) error
}

// Pure is a [Step] whose Forward has no effect except its result. A recomputation skips Forward if
// nothing reads the result.
type Pure interface {
	Step
	// Saves calls [Call.Save] after Forward, or after Forward was skipped. Forward itself saves
	// nothing.
	Saves(c *Call)
}

// Op is a kind of operation (torch.autograd.Function). R is its record; *R is a [Step], and may be
// [Pure]. Make an Op once, as a package variable:
//
//	var opQuickGELU = autograd.NewOp[quickGELU]("QuickGELU")
//
//	func QuickGELU(t *autograd.Tape, x *autograd.Variable, slope float64) *autograd.Variable {
//		return opQuickGELU.Apply(t, quickGELU{slope}, x)
//	}
//
// Errors contain the operation's name, and profiles show it as a part of the current module (see
// [Tape.Module]). Records are pooled: on a tape that is reset, a use allocates no Go objects in
// steady state. A composition of operations needs no Op: see [Tape.Frame]. [Tape.Func] is shorter
// for an operation that is used in one place.
type Op[R any, P interface {
	*R
	Step
}] struct {
	name string
	kind kind
}

// kind describes all uses of an operation.
type kind struct {
	number   int  // unique in the process, from 1 on
	pure     bool // the step is Pure
	view     bool // Forward always runs, because the result takes no memory
	constant bool // the result has no gradient
	fresh    bool // records are not pooled, because the caller may hold the Call
	named    bool // a use enters a module of the operation's name
	borrows  bool // on a tape of NoGrad it does not free its inputs
}

var kindsMade atomic.Int64

// NewOp makes a kind of operation.
func NewOp[R any, P interface {
	*R
	Step
}](name string) *Op[R, P] {
	o := newOp[R, P](name)
	o.kind.named = true
	return o
}

// newOp is NewOp for the package's own operations, whose names would hide those of modules.
func newOp[R any, P interface {
	*R
	Step
}](name string) *Op[R, P] {
	step := any(P(nil))
	k := kind{number: int(kindsMade.Add(1))}
	_, k.pure = step.(Pure)
	_, k.view = step.(interface{ view() })
	_, k.constant = step.(interface{ constant() })
	_, k.fresh = step.(interface{ fresh() })
	_, k.borrows = step.(interface{ borrows() })
	return &Op[R, P]{name, k}
}

// use is a record with its call.
type use[R any] struct {
	Call
	r R
}

func (u *use[R]) clear() {
	var none R
	u.r = none
}

// Apply runs the operation with the options r on variables of the tape, and returns its result. An
// error sticks to the tape.
func (o *Op[R, P]) Apply(t *Tape, r R, inputs ...*Variable) *Variable {
	if o == nil || o.kind.number == 0 {
		t.fail("Apply", fmt.Errorf("%w: the operation was not made by NewOp", ErrInvalid))
		return t.inert()
	}
	return o.applyAs(o.name, t, &r, inputs...)
}

// applyAs is Apply under another name. r is copied.
func (o *Op[R, P]) applyAs(name string, t *Tape, r *R, inputs ...*Variable) *Variable {
	if !t.begin(name, inputs...) {
		return t.inert()
	}
	if !o.kind.named {
		return t.operate(name, o.record(t, r), inputs)
	}
	defer t.setModule(t.enterModule(t.part(name, "")))
	return t.operate(name, o.record(t, r), inputs)
}

// record returns a free record's call, with the options r.
func (o *Op[R, P]) record(t *Tape, r *R) *Call {
	var u *use[R]
	if c := t.records.take(o.kind.number); c != nil {
		u = c.record.(*use[R])
	} else {
		u = new(use[R])
		u.record, u.kind, u.step = u, &o.kind, P(&u.r)
	}
	u.r = *r
	return &u.Call
}

// operate runs Forward, makes the result's variable, and records a node if an input needs a
// gradient.
func (t *Tape) operate(name string, c *Call, inputs []*Variable) *Variable {
	c.begin(t, name, inputs)
	y, err := c.forward()
	switch {
	case err != nil:
		t.free(y)
	case y == nil:
		err = fmt.Errorf("%w: forward returned no tensor", ErrInvalid)
	case c.variable(y) != nil:
		err = fmt.Errorf("%w: forward returned an input: return a Share of it", ErrInvalid)
	}
	out := t.result(name, y, err, c.kind.pure)
	c.out = out
	recorded := out.value != nil && t.record && t.err == nil && !c.kind.constant && c.NeedsGrads()
	if recorded && c.kind.pure {
		c.step.(Pure).Saves(c)
	}
	var room [4]*Variable
	reads := c.sort(room[:0])
	if recorded {
		t.push(c, t.save(reads))
	} else {
		c.end()
	}
	if t.record || !c.kind.borrows {
		t.endHolds(name, inputs)
	}
	return out
}

// forward computes the result. A result that nothing reads is uninitialised memory.
func (c *Call) forward() (*tensor.Tensor, error) {
	if c.kind.pure && !c.kind.view {
		if dtype, shape, ok := c.tape.unread(); ok {
			return c.tape.rt.New(c.tape.ctx, dtype, shape...)
		}
	}
	return c.step.Forward(c)
}

// push records a node for c.
func (t *Tape) push(c *Call, saved []saved) {
	c.out.needsGrad = true
	t.nodes = append(t.nodes, Node{out: c.out, module: t.module, call: c, saved: saved, uses: t.use(c.inputs)})
	t.hookSaved(&t.nodes[len(t.nodes)-1])
}

// Call is one use of an operation, shared by Forward and Backward. Only the tape's goroutine uses
// it. After Backward has returned, the tape reuses it.
type Call struct {
	tape   *Tape
	name   string
	step   Step
	kind   *kind
	record interface{ clear() } // contains the call
	out    *Variable            // the result; nil until Forward has returned
	inputs []*Variable
	saved  []*tensor.Tensor // by Save
	own    []*tensor.Tensor // saved tensors that the call owns

	room struct { // capacity for short lists, so that a call is one Go object
		inputs [4]*Variable
		saved  [6]*tensor.Tensor
		own    [2]*tensor.Tensor
		dims   [8]int // for dims
		grads  [1]*tensor.Tensor
	}
}

// begin prepares the call for a use on t.
func (c *Call) begin(t *Tape, name string, inputs []*Variable) {
	c.tape, c.name = t, name
	c.inputs, c.saved, c.own = append(c.room.inputs[:0], inputs...), c.room.saved[:0], c.room.own[:0]
}

// Context returns the context for the operation's allocations. The tape owns them, and Close frees
// those that remain.
func (c *Call) Context() context.Context { return c.tape.ctx }

// Runtime returns the tape's runtime.
func (c *Call) Runtime() *tensor.Runtime { return c.tape.rt }

// Recomputing reports whether Forward runs again in the backward pass, for values that were not
// kept.
func (c *Call) Recomputing() bool { return c.tape.recomputing }

// Inputs returns the number of inputs.
func (c *Call) Inputs() int { return len(c.inputs) }

// Input returns the value of input i, or nil if there are fewer inputs. The tape owns it. Backward
// may read the elements only of saved inputs.
func (c *Call) Input(i int) *tensor.Tensor {
	if i >= len(c.inputs) {
		return nil
	}
	return c.inputs[i].value
}

// Result returns Forward's result. The tape owns it. Backward may read its elements only if it was
// saved.
func (c *Call) Result() *tensor.Tensor { return c.out.Tensor() }

// NeedsGrad reports whether input i needs a gradient. If not, Forward need not save tensors for it.
// No input of a [NoGrad] tape does.
func (c *Call) NeedsGrad(i int) bool { return i < len(c.inputs) && c.inputs[i].needsGrad }

// NeedsGrads reports whether any input needs a gradient.
func (c *Call) NeedsGrads() bool {
	for _, v := range c.inputs {
		if v.needsGrad {
			return true
		}
	}
	return false
}

// Save keeps tensors for Backward (ctx.save_for_backward): inputs, the result, or tensors that
// Forward made, which the call then owns. If no input needs a gradient, it keeps nothing. Backward
// fails with [ErrStale] if a saved input or result was overwritten.
func (c *Call) Save(ts ...*tensor.Tensor) { c.saved = append(c.saved, ts...) }

// Saved returns the saved tensors in the order of Save.
func (c *Call) Saved() []*tensor.Tensor { return c.saved }

// dims returns a tensor's shape in memory of the call, valid until the next dims or Give.
func (c *Call) dims(x *tensor.Tensor) []int { return tensor.AppendShape(c.room.dims[:0], x) }

// Overwrite allows the result to take the memory of input i if this is the last reader. Backward
// must not read that input. Call it directly before the runtime's operation that makes the result;
// see [tensor.Donate].
func (c *Call) Overwrite(i int) {
	if i < len(c.inputs) {
		c.tape.donate(c.inputs[i])
	}
}

// Reuse returns g if its memory is not shared, as the destination of an in-place gradient;
// otherwise nil.
func (c *Call) Reuse(g *tensor.Tensor) *tensor.Tensor {
	if g.Exclusive() {
		return g
	}
	return nil
}

// Give adds d to the gradient of input i and takes ownership of d; nil adds nothing. d has the
// input's shape, or the shape to which the input was broadcast: then Give sums it. If err is not
// nil, Give returns it and adds nothing. To give one gradient to two inputs, give one of them a
// [tensor.Runtime.Share].
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

// GiveReplacing is Give for a d that replaces Backward's g: it frees g unless d is g.
func (c *Call) GiveReplacing(i int, g, d *tensor.Tensor, err error) error {
	if d != g {
		c.Free(g)
	}
	return c.Give(i, d, err)
}

// onto takes the current gradient of input i. The caller adds to it in place and gives it again.
// onto returns nil if there is no gradient, or if it can't be changed in place.
func (c *Call) onto(i int) *tensor.Tensor {
	v := c.inputs[i]
	g := v.grad
	if !g.Exclusive() || g.Dtype() != v.value.Dtype() {
		return nil
	}
	if v.param != nil && g.Dtype().Wide() != 0 { // such gradients are added up in the wide dtype
		return nil
	}
	v.grad = nil
	return g
}

// Done releases input i before Backward returns, if it was saved. The last release frees it.
func (c *Call) Done(i int) {
	if i < len(c.inputs) {
		c.done(c.inputs[i])
	}
}

// DoneResult is Done for the result.
func (c *Call) DoneResult() { c.done(c.out) }

func (c *Call) done(v *Variable) { c.tape.current.done(v) }

// doneOwn frees the saved tensors that the call owns.
func (c *Call) doneOwn() {
	for _, s := range c.own {
		c.tape.free(s)
	}
	clear(c.own)
	c.own = c.own[:0]
}

// Free releases a tensor that the operation made, or Backward's g.
func (c *Call) Free(x *tensor.Tensor) { c.tape.free(x) }

// sort appends the variables of saved tensors to reads, and the other saved tensors to own.
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

// variable returns the input or the result whose value is x, or nil.
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

// spent is the tape of calls that are not in use. A caller that still holds one gets errors instead
// of a panic.
var spent = &Tape{ctx: context.Background(), slab: new(slab)}

// end frees the call's own tensors and returns the record to the pool.
func (c *Call) end() {
	c.doneOwn()
	c.recycle()
}

// recycle returns the record to the pool, unless the caller may hold the Call.
func (c *Call) recycle() {
	if c.kind == nil || c.kind.fresh {
		c.saved = nil
		return
	}
	s := c.tape.slab
	clear(c.room.inputs[:])
	clear(c.room.saved[:])
	clear(c.room.own[:])
	c.tape, c.out, c.inputs, c.saved, c.own = spent, nil, nil, nil, nil
	c.room.grads[0] = nil
	c.record.clear()
	s.records.give(c)
}
