package autograd

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"

	"github.com/cistern-ml/cistern/device"
	"github.com/cistern-ml/cistern/internal/race"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Classes of errors, for errors.Is. Errors of operations wrap those of package tensor.
var (
	// ErrTape: the variable belongs to another tape.
	ErrTape = errors.New("variable of another tape")
	// ErrSpent: the tape was run backward or closed and takes no more operations.
	ErrSpent = errors.New("tape is spent")
	// ErrNoGrad: there is nothing to differentiate.
	ErrNoGrad = errors.New("no gradient")
	// ErrStale: a value that the backward pass needs was overwritten after the forward pass.
	ErrStale = errors.New("overwritten since the forward pass")
	// ErrInvalid: an argument is wrong; it is [device.ErrInvalid].
	ErrInvalid = device.ErrInvalid
)

// Tape records operations on variables, to run them backward once. One tape serves one step of one
// goroutine: make it, record the forward pass, call Backward, Close it. [Tape.Reset] reuses it for
// the next step.
//
// The first error of an operation sticks: the operation and all later ones return inert variables,
// and Backward, Err and Close report it, so that only Backward needs a check. Close frees
// everything that the tape still holds, after an error too.
type Tape struct {
	rt         *tensor.Runtime
	ctx        context.Context // of the module that the tape is in
	lifetime   *tensor.Lifetime
	record     bool
	training   bool
	outOfPlace bool         // no result takes an argument's memory: for tests that compare
	compute    tensor.Dtype // 16-bit dtype to which operands of its wide dtype are rounded; 0: none
	state      string       // why the tape takes no more operations; "" if it takes them
	err        error

	*slab
	*places
	after struct { // used after Close, when another tape may own the slab and the places
		slab
		places
		modulePlace
	}
	room
	variables int // number made
	scope     scope
	scopes    int // number begun

	run, runs   int  // number of the innermost function that is run twice, or 0; count of such runs
	recomputing bool // a function runs again in the backward pass

	given      context.Context // source of base and of the modules' contexts; nil after SetContext
	base       context.Context // set by the program
	label      memcache.Label  // of base
	labels     memcache.LabelContexts
	module     *modulePlace
	inBackward bool
	running    bool      // Backward
	calls      int       // number of the program's functions that run inside of the tape's calls
	root       *Variable // where Backward begins
	current    Node      // the node in its backward step

	random tensor.Random // of the next random operation
	seeded bool
}

// scope is a run of a frame or of a layer. Operations belong to the innermost one.
type scope struct {
	number   int  // new for each scope of a tape; 0: outside of all
	frame    bool // there is a frame, which frees values at its end
	borrowed int  // the variables up to this number belong to the innermost layer's caller
}

// NewTape makes a tape that records on rt. ctx is the context of its allocations, until SetContext;
// tensors of the tape belong to the tape and to no lifetime in ctx.
func NewTape(ctx context.Context, rt *tensor.Runtime) *Tape { return newTape(ctx, rt, true) }

// NoGrad makes a tape that records nothing (torch.no_grad): its operations compute and save
// nothing, and Backward is an error. The first operation that reads another one's result frees it,
// and a layer frees its intermediate values. Inputs, arguments of layers and of losses, and kept
// values stay until Reset or Close. Call [Variable.Keep] on each result that is read more than
// once; otherwise its second reader fails.
func NoGrad(ctx context.Context, rt *tensor.Runtime) *Tape { return newTape(ctx, rt, false) }

func newTape(ctx context.Context, rt *tensor.Runtime, record bool) *Tape {
	base, lifetime := tensor.WithLifetime(tensor.Detached(ctx))
	t := &Tape{rt: rt, lifetime: lifetime, record: record, training: record, slab: newSlab(), places: newPlaces(), base: base}
	// Gradients of parameters live until the next step; all other tensors end with the tape.
	lifetime.Group(t.sizes.tensors())
	t.labels.Expect(t.sizes.contexts())
	t.group = t.sizes.variables()
	t.module = t.place(at{})
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
// ([memcache.Label]) the tape's allocations are activations or, in Backward, gradients, of the
// context's module and step. If the context names no step, the previous step stays.
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
	if t.ctx != nil || t.base == nil { // the lifetime was made with the first one
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

// Context returns the context for allocations: that of SetContext, with the tape's current module.
func (t *Tape) Context() context.Context {
	if t.none() {
		return context.Background()
	}
	return t.ctx
}

// Runtime returns the runtime that the tape computes on.
func (t *Tape) Runtime() *tensor.Runtime {
	if t == nil {
		return nil
	}
	return t.rt
}

// Training reports whether the tape is in training mode (torch.nn.Module.train), which dropout and
// the layer nn.BatchNorm depend on. Until SetTraining, a tape that records is, and one of [NoGrad]
// is not.
func (t *Tape) Training() bool { return t != nil && t.training }

// SetTraining sets training mode, or evaluation mode (torch.nn.Module.eval).
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

// none reports whether the tape is nil or was not made by newTape. Operations on such a tape do
// nothing and return variables of one.
func (t *Tape) none() bool { return t == nil || t.lifetime == nil }

// Close frees everything that the tape holds: values, the loss, and gradients of variables other
// than parameters. Gradients of parameters belong to the parameters. It is idempotent and returns
// the error that sticks to the tape, if any.
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
		if t.running { // Backward is still running and calls the hooks at its end
			t.after.hooks = t.hooks
		} else {
			t.slab.recycle()
		}
		t.after.at = t.module.at
		t.places.recycle()
		t.slab, t.places, t.module = &t.after.slab, &t.after.places, &t.after.modulePlace
	}
	return t.err
}

// fail makes err the tape's error, unless there is one.
func (t *Tape) fail(op string, err error) {
	if t.none() {
		return
	}
	if t.err == nil && err != nil {
		t.err = fmt.Errorf("autograd: %s: %w", op, err)
	}
}

// Phase is the current activity of a tape.
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

// Phase returns the tape's current phase.
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

// Nodes returns the recorded operations whose steps have not run. The tape owns the list, which is
// valid until the next operation.
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

// Fail makes err the tape's error, unless there is one, and returns an inert variable. A layer or a
// function that can't compute its result returns this variable. A nil err changes nothing.
func (t *Tape) Fail(err error) *Variable {
	if !t.none() && t.err == nil {
		t.err = err
	}
	return t.inert()
}

// inert returns a variable without a value, the result of an operation after an error.
func (t *Tape) inert() *Variable {
	if t.none() {
		return &Variable{tape: new(Tape)}
	}
	return t.newVariable()
}

// String returns a text such as "tape of 12 variables".
func (t *Tape) String() string {
	if t == nil {
		return "no tape"
	}
	return fmt.Sprintf("tape of %d variables", t.variables)
}

// backwardState is the tape's state in Backward and after it.
const backwardState = "run backward"

// Node is one recorded operation.
type Node struct {
	out    *Variable
	module *modulePlace
	saved  []saved // inputs and result that the backward step reads
	uses   span    // the inputs that are trained
	call   *Call
}

// saved is a value that a backward step reads, and its version in the forward pass.
type saved struct {
	*Variable
	version uint64
}

// span is a part of the slab's list of uses.
type span struct{ from, to int32 }

// Name returns the operation's name, as errors and profiles show it.
func (n *Node) Name() string { return n.call.name }

// Reruns reports whether [Tape.Record] made the node. Its step runs a function again, and the
// operations of that function read the saved values.
func (n *Node) Reruns() bool { return n.call.kind == nil }

// Saved returns the variables whose values the backward step reads.
func (n *Node) Saved() iter.Seq[*Variable] {
	return func(yield func(*Variable) bool) {
		for _, s := range n.saved {
			if !yield(s.Variable) {
				return
			}
		}
	}
}

// Own returns the tensors that only this node holds, for its backward step. The node owns them.
func (n *Node) Own() []*tensor.Tensor { return n.call.own }

// records are free records, by kind. Op.Apply takes one. Call.end returns it after the backward
// step, when the tape ends, or at once if no node was recorded.
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

// slab holds the lists of a tape. The tape empties them at its end and the next tape reuses them,
// so that a training step makes no garbage for them. Variables are not reused, because the program
// may hold pointers to them.
type slab struct {
	nodes  []Node
	values []*Variable // released by Backward, or by the frame that made them
	saved  []saved     // of all nodes, in order
	uses   []*Variable // trained inputs of all nodes, in order

	hooks     []Hooks
	recorders []Recorder  // those among hooks
	reads     []*Variable // scratch of hookRead

	params map[*Parameter]*Variable

	records records
	sizes   sizes
}

// sizes records what the last two tapes with the slab made. A tape allocates the smaller number of
// each kind at once. So a training with similar steps makes one Go object for each kind, and a
// small tape between large ones does not make as many as they do.
type sizes struct{ last, before size }

// size counts the variables, tensors and contexts that a tape has made.
type size struct{ variables, tensors, contexts int }

func (t *Tape) size() size { return size{t.variables, t.lifetime.Made(), t.labels.Made()} }

func (s *sizes) note(of size)   { s.last, s.before = of, s.last }
func (s *sizes) variables() int { return min(s.last.variables, s.before.variables) }
func (s *sizes) tensors() int   { return min(s.last.tensors, s.before.tensors) }
func (s *sizes) contexts() int  { return min(s.last.contexts, s.before.contexts) }

// slabs keeps slabs for reuse. In race builds each slab is new, because the pool would order the
// goroutines of tapes and so hide races.
var slabs = sync.Pool{New: func() any { return &slab{params: make(map[*Parameter]*Variable)} }}

func newSlab() *slab {
	if race.Enabled {
		return slabs.New().(*slab)
	}
	return slabs.Get().(*slab)
}

// recycle empties the slab and returns it to the pool.
func (s *slab) recycle() {
	s.forget()
	s.unhookAll()
	clear(s.params)
	if !race.Enabled {
		slabs.Put(s)
	}
}

// forget empties the lists. The tensors that the calls own belong to the tape's lifetime.
func (s *slab) forget() {
	for i := range s.nodes {
		s.nodes[i].call.recycle()
	}
	clear(s.nodes)
	clear(s.values)
	clear(s.saved)
	clear(s.uses)
	s.nodes, s.values, s.saved, s.uses = s.nodes[:0], s.values[:0], s.saved[:0], s.uses[:0]
}

func (s *slab) unhookAll() {
	clear(s.hooks)
	clear(s.recorders)
	s.hooks, s.recorders = s.hooks[:0], s.recorders[:0]
}

// save records the values that a backward step reads, with their versions.
func (t *Tape) save(reads []*Variable) []saved {
	s := t.slab
	from := len(s.saved)
	for _, v := range reads {
		v.holds++
		t.hookNeeded(v)
		s.saved = append(s.saved, saved{v, v.value.Version()})
	}
	return s.saved[from:len(s.saved):len(s.saved)]
}
