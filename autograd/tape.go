package autograd

import (
	"context"
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Tape records operations on variables, to run them backward once. One tape serves one step of one goroutine:
// make it, record the forward pass, call Backward, Close it. [Tape.Reset] makes it serve the next step.
//
// The first error of an operation sticks: the operation and all later ones return inert variables, and
// Backward, Err and Close report it, so that only Backward needs a check. Close frees everything that the
// tape still holds, after an error too.
type Tape struct {
	rt         *tensor.Runtime
	ctx        context.Context // of the module that the tape is in
	lifetime   *tensor.Lifetime
	record     bool
	training   bool
	outOfPlace bool         // no result takes an argument's memory: for tests that compare
	compute    tensor.Dtype // of 16 bits, to which what is brought to the tape in its wide dtype is rounded; 0: nothing is
	state      string       // why no operations are taken any more; empty: they are
	err        error

	*slab
	*places
	after struct { // Close: what the tape records in and where it is, as all that it had may be another tape's
		slab
		places
		modulePlace
	}
	room
	variables int // that were made
	scope     scope
	scopes    int // that have begun

	run, runs   int  // the number of the innermost function that runs twice, 0 outside of all; how many there were
	recomputing bool // what was not kept

	given      context.Context // what base and the modules' contexts were made of; nil: SetContext has changed them
	base       context.Context // what the program has set
	label      memcache.Label  // of base
	labels     memcache.LabelContexts
	module     *modulePlace
	inBackward bool
	running    bool      // Backward
	calls      int       // of functions of the program's own that are under way
	root       *Variable // where Backward begins
	current    Node      // whose backward step runs

	random random // of the next random operation
	seeded bool
}

// scope is a run of a frame or of a layer. Operations belong to the innermost one.
type scope struct {
	number   int  // new for each scope of a tape; 0: outside of all
	frame    bool // there is a frame, which frees values at its end
	borrowed int  // the variables up to this number are those of the innermost layer's caller
}

// open enters the scope of a layer, which borrows the variables that exist. It returns the scope
// around it, for setScope.
func (t *Tape) open() (outer scope) {
	outer = t.scope
	t.scopes++
	t.scope.number, t.scope.borrowed = t.scopes, t.variables
	return outer
}

func (t *Tape) setScope(s scope) { t.scope = s }

// NewTape makes a tape that records on rt. ctx is the context of its allocations, until SetContext; tensors of
// the tape belong to the tape and to no lifetime in ctx.
func NewTape(ctx context.Context, rt *tensor.Runtime) *Tape { return newTape(ctx, rt, true) }

// NoGrad makes a tape that records nothing (torch.no_grad): its operations compute, Backward is an error, and
// nothing is kept for it. What an operation made is freed by the first operation that reads it, and what a layer made
// on its way by the layer. Inputs and arguments of layers stay, and what the program calls Keep on: call it on what is
// read more than once; a second reading of anything else is an error that says so.
func NoGrad(ctx context.Context, rt *tensor.Runtime) *Tape { return newTape(ctx, rt, false) }

func newTape(ctx context.Context, rt *tensor.Runtime, record bool) *Tape {
	base, lifetime := tensor.WithLifetime(tensor.Detached(ctx))
	t := &Tape{rt: rt, lifetime: lifetime, record: record, training: record, slab: newSlab(), places: newPlaces(), base: base}
	lifetime.Group(t.sizes.tensors()) // what Backward hands to parameters lives until the next step, and all else ends with the tape
	t.labels.Expect(t.sizes.contexts())
	t.group = t.sizes.variables()
	t.module = t.place("")
	t.setContext("NewTape", ctx)
	t.given = ctx
	t.checkRuntime("NewTape")
	return t
}

func (t *Tape) checkRuntime(call string) {
	if t.rt == nil {
		t.fail(call, fmt.Errorf("%w: the runtime is nil", ErrInvalid))
	}
}

// SetContext changes the context of the tape's allocations and frees, those of Close too, so that
// the phases of a step can have spans and memory scopes of their own. In profiles
// ([memcache.Label]) what the tape allocates is an activation or, in Backward, a gradient, of the
// context's module and step; where the context names no step, that of the context before goes on.
func (t *Tape) SetContext(ctx context.Context) {
	if t.none() {
		return
	}
	t.given = nil
	t.setContext("SetContext", ctx)
}

func (t *Tape) setContext(call string, ctx context.Context) {
	if ctx == nil {
		t.fail(call, fmt.Errorf("%w: the context is nil; use context.Background()", ErrInvalid))
		return
	}
	step := t.label.Step
	if t.ctx != nil || t.base == nil { // the lifetime has the first one
		t.base = t.lifetime.Attach(ctx)
	}
	t.label = memcache.LabelOf(ctx)
	if t.label.Step == 0 {
		t.label.Step = step
	}
	for _, m := range t.modules {
		m.contexts = [2]context.Context{}
	}
	t.ctx = t.moduleContext()
}

// Context returns the context of what is allocated now: that of SetContext, with the tape's module.
func (t *Tape) Context() context.Context {
	if t.none() {
		return context.Background()
	}
	return t.ctx
}

// Runtime is the runtime that the tape computes on.
func (t *Tape) Runtime() *tensor.Runtime {
	if t == nil {
		return nil
	}
	return t.rt
}

// Training reports whether what differs in training and in use, dropout and the layer [nn.BatchNorm],
// trains (torch.nn.Module.train). A tape that records trains, and one of [NoGrad] does not, until
// SetTraining.
func (t *Tape) Training() bool { return t != nil && t.training }

// SetTraining lets them train on this tape, or not (torch.nn.Module.eval).
func (t *Tape) SetTraining(yes bool) {
	if t != nil {
		t.training = yes
	}
}

// Err returns the first error of the tape's operations, or nil.
func (t *Tape) Err() error {
	if t.none() {
		return errNoTape
	}
	return t.err
}

var errNoTape = fmt.Errorf("autograd: %w: the tape is nil, or was not made by NewTape or NoGrad", ErrInvalid)

// none reports whether the tape can't be used. Operations on it return variables of such a tape,
// and do nothing.
func (t *Tape) none() bool { return t == nil || t.lifetime == nil }

// Close frees everything that the tape holds: values, gradients of variables that are no parameters, the
// loss. Gradients of parameters belong to the parameters. It is idempotent and returns the error that sticks
// to the tape, if any.
func (t *Tape) Close() error {
	if t.none() {
		return errNoTape
	}
	open := t.state != "closed"
	if open {
		t.sizes.note(t.size())
	}
	t.state = "closed"
	if err := t.lifetime.CloseContext(t.ctx); err != nil {
		t.fail("Close", err)
	}
	t.hookLeave()
	if open {
		if t.running { // Backward is at the nodes still, and tells the hooks of its end
			t.after.hooks = t.hooks
		} else {
			t.slab.recycle()
		}
		t.after.path = t.module.path
		t.places.recycle()
		t.slab, t.places, t.module = &t.after.slab, &t.after.places, &t.after.modulePlace
	}
	return t.err
}

// fail makes err stick, unless another one does already.
func (t *Tape) fail(op string, err error) {
	if t.none() {
		return
	}
	if t.err == nil && err != nil {
		t.err = fmt.Errorf("autograd: %s: %w", op, err)
	}
}

// Phase is what a tape does.
type Phase uint8

const (
	// PhaseForward: operations are recorded, or computed on a tape of [NoGrad].
	PhaseForward Phase = iota
	// PhaseDropped: [Tape.Dropped] runs a function.
	PhaseDropped
	// PhaseBackward: [Tape.Backward] runs steps.
	PhaseBackward
	// PhaseRerun: [Tape.Rerun] runs a function.
	PhaseRerun
	// PhaseEnded: Backward has returned, or the tape was closed.
	PhaseEnded
)

// Phase returns what the tape does.
func (t *Tape) Phase() Phase {
	switch {
	case t.none() || t.state != "" && (!t.running || t.state != backwardState):
		return PhaseEnded
	case t.recomputing:
		return PhaseRerun
	case t.state != "":
		return PhaseBackward
	case t.run > 0:
		return PhaseDropped
	}
	return PhaseForward
}

// Recording reports whether operations are recorded for Backward, as on all tapes except those of
// [NoGrad].
func (t *Tape) Recording() bool { return !t.none() && t.record }

// Nodes returns the recorded operations whose steps have not run. The list is the tape's, valid
// until its next operation.
func (t *Tape) Nodes() []Node {
	if t.none() {
		return nil
	}
	return t.nodes
}

// Count returns the number of variables that the tape has made; see [Variable.Number].
func (t *Tape) Count() int {
	if t.none() {
		return 0
	}
	return t.variables
}

// Begin reports whether the operation op on vs can start: no error sticks, and every operand is a
// live variable of this tape. Otherwise the tape has an error. A function that is no [Op] calls it.
func (t *Tape) Begin(op string, vs ...*Variable) bool { return t.begin(op, vs...) }

// Fail makes err the tape's error, unless there is one, and returns an inert variable: what a layer
// or a function returns that can't compute its result. A nil err leaves the tape's error as it is.
func (t *Tape) Fail(err error) *Variable {
	if !t.none() && t.err == nil {
		t.err = err
	}
	return t.inert()
}

// begin tells whether the operation can start: no error sticks, and every argument is a live variable of this
// tape.
func (t *Tape) begin(op string, vs ...*Variable) bool {
	if t.none() {
		return false
	}
	if t.state != "" {
		t.fail(op, fmt.Errorf("%w: it was %s: make a new one for every step, or Reset it", ErrSpent, t.state))
	}
	for i, v := range vs {
		switch {
		case v == nil:
			t.fail(op, fmt.Errorf("%w: operand %d is nil", ErrInvalid, i+1))
		case v.tape.none():
			t.fail(op, fmt.Errorf("operand %d: %w", i+1, errNoTape))
		case v.tape != t:
			t.fail(op, fmt.Errorf("%w: operand %d: bring tensors to this tape with Input, Leaf or Param", ErrTape, i+1))
		case v.param != nil && v.param.attached != nil:
			t.join(v)
		}
	}
	if t.err != nil || len(t.hooks) > 0 && len(vs) > 0 && !t.hookRead(op, vs) {
		return false
	}
	for i, v := range vs {
		if v.param != nil && v.released() && !t.record { // FreeCopy has freed it
			if t.workingCopy(v); t.err != nil {
				return false
			}
		}
		if v.released() {
			t.fail(op, v.releasedError(fmt.Sprintf("operand %d", i+1)))
			return false
		}
	}
	return true
}

// result makes the variable of an operation's result, which the tape owns.
func (t *Tape) result(op string, value *tensor.Tensor, err error, pure bool) *Variable {
	v := t.newVariable()
	if err != nil {
		t.fail(op, err)
		return v
	}
	v.value, v.owned, v.held, v.made, v.holds = value, true, true, true, 1
	t.expect(v)
	if len(t.recorders) > 0 && value != nil {
		t.hookMade(op, v, pure)
	}
	return v
}

// expect prepares the end of the program's hold on v: by Backward, by the end of the frame, or else
// by the last reader.
func (t *Tape) expect(v *Variable) {
	switch {
	case t.record || t.scope.frame:
		t.values = append(t.values, v)
	case v.made:
		v.markLast()
	}
}

// inert is a variable without a value, the result of an operation after an error.
func (t *Tape) inert() *Variable {
	if t.none() {
		return &Variable{tape: new(Tape)}
	}
	return t.newVariable()
}

// String is such as "tape of 12 variables".
func (t *Tape) String() string {
	if t == nil {
		return "no tape"
	}
	return fmt.Sprintf("tape of %d variables", t.variables)
}
