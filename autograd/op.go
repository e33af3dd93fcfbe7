package autograd

import (
	"fmt"
	"sync/atomic"

	"github.com/cistern-ml/cistern/tensor"
)

// Step is what an operation computes. Its record, the receiver, has the operation's options; Forward may note more in it for
// Backward. It lives from Forward to the end of Backward, and is used again by later calls.
//
// Both queue their work on the runtime's stream and don't wait for it; work that they launch themselves names its memory with
// [device.Launch]. What they make on their way they free. An error sticks to the tape, with the operation's name.
type Step interface {
	// Forward computes the result from the inputs' values and saves what Backward needs ([Call.Save]). The tape owns what it
	// returns, which is new, or a view of its own ([tensor.Runtime.Share]).
	Forward(c *Call) (*tensor.Tensor, error)
	// Backward gets the gradient g of the result, owns it, and gives each input that needs one its own ([Call.Give]):
	// weights before what other operations have made, as they are then exchanged or updated while the rest is computed.
	Backward(c *Call, g *tensor.Tensor) error
}

// Pure is a [Step] whose Forward has no other effect than its result, so that it is not called where nobody reads that: in a
// checkpoint's function that runs again.
type Pure interface {
	Step
	// Saves saves what Backward needs, once there is a result; Forward saves nothing.
	Saves(c *Call)
}

// Op is a kind of operation (torch.autograd.Function). R is its record, whose pointer is a [Step], or [Pure]. Make it once, as
// a package variable:
//
//	var opScale = autograd.NewOp[scale]("Scale")
//
//	func Scale(t *autograd.Tape, x *autograd.Variable, by float64) *autograd.Variable {
//		return opScale.Apply(t, scale{by}, x)
//	}
//
// The name stands in errors, and in profiles as a part of the module that the tape is in (see [Tape.Module]). Records are used
// again: in a training on a tape that is reset a use makes no object of the Go heap. An operation that is a composition of
// others needs no Op: see [Tape.Frame]. For one that is used in one place there is [Tape.Func].
type Op[R any, P interface {
	*R
	Step
}] struct {
	name string
	kind kind
}

// kind is what all uses of an operation have in common.
type kind struct {
	number   int  // counts the kinds of the process, from 1 on
	pure     bool // Forward need not run where nobody reads the result
	view     bool // it runs always, as it takes no memory
	constant bool // there is no gradient
	fresh    bool // each use has a new record, as the program may hold it
	named    bool // it is a part of the module that the tape is in
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

// Apply makes one use of the operation, with r's options. The inputs are variables of the tape.
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
		return t.run(name, o.record(t, r), inputs)
	}
	defer t.setModule(t.enterModule(t.joined(t.module.path, name)))
	return t.run(name, o.record(t, r), inputs)
}

// record is a call with the options r, in a record that no node has.
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

// run makes the call of an operation that has begun.
func (t *Tape) run(name string, c *Call, inputs []*Variable) *Variable {
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
		t.note(c, reads)
	} else {
		c.end()
	}
	t.spend(name, inputs)
	return out
}

// forward computes the result, or makes memory for one that nobody reads.
func (c *Call) forward() (*tensor.Tensor, error) {
	if c.kind.pure && !c.kind.view {
		if dtype, shape, ok := c.tape.unread(); ok {
			return c.tape.rt.New(c.tape.ctx, dtype, shape...)
		}
	}
	return c.step.Forward(c)
}

// note records a call whose result has a gradient. reads are the variables, among inputs and result, that it has saved.
func (t *Tape) note(c *Call, reads []*Variable) {
	c.out.needsGrad = true
	t.nodes = append(t.nodes, Node{out: c.out, module: t.module, call: c, saved: t.save(reads), uses: t.use(c.inputs)})
	t.hookSaved(&t.nodes[len(t.nodes)-1])
}

// records are those of operations that no node has, by kind. A record goes from its operation to the node, and comes back when
// the backward step has run, or at once if there is none.
type records struct{ free [][]*Call }

// take returns a record of a kind, or nil.
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
