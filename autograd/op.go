package autograd

import (
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
//	var opScale = autograd.NewOp[scale]("Scale")
//
//	func Scale(t *autograd.Tape, x *autograd.Variable, by float64) *autograd.Variable {
//		return opScale.Apply(t, scale{by}, x)
//	}
//
// Errors have the operation's name, and profiles have it as a part of the current module (see
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
	number   int  // counts the kinds of the process, from 1 on
	pure     bool // the step is Pure
	view     bool // Forward always runs, because the result takes no memory
	constant bool // the result has no gradient
	fresh    bool // records are not pooled, because the caller may hold the Call
	named    bool // a use enters a module of the operation's name
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
	defer t.setModule(t.enterModule(t.joined(t.module.path, name)))
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

// operate runs Forward, makes the result's variable, and records a node if an input needs a gradient.
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
	t.endHolds(name, inputs)
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

// records are free records, by kind. Op.Apply takes one. Call.end returns it after the backward
// step, or at once if no node was recorded.
type records struct{ free [][]*Call }

// take removes and returns a record of a kind, or returns nil.
func (r *records) take(kind int) *Call {
	if kind >= len(r.free) {
		return nil
	}
	free := r.free[kind]
	last := len(free) - 1
	if last < 0 {
		return nil
	}
	r.free[kind] = free[:last]
	return free[last]
}

func (r *records) give(c *Call) {
	k := c.kind.number
	if k >= len(r.free) {
		r.free = append(r.free, make([][]*Call, k+1-len(r.free))...)
	}
	r.free[k] = append(r.free[k], c)
}
