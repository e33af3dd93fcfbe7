package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Backward ends the program's hold on each value except kept ones. A node's hold lasts until its
// step has run or calls Done for the value. The end of the last hold frees the value. Each gradient
// has one owner at a time, from step to step, so that an exclusive gradient can be overwritten in
// place. A shared one is copied before it is written. The counts need no lock, because a tape
// belongs to one goroutine.

// fresh returns an error if the value was overwritten since it was saved, because the gradient
// would be wrong.
func (s saved) fresh() error {
	now := s.value.Version()
	if now == s.version {
		return nil
	}
	what, advice := "a value", "overwrite it after Backward"
	if s.param != nil {
		what, advice = s.param.called(), "take the optimiser's step after Backward of every tape that has read the parameter, or run the forward pass again"
	}
	return fmt.Errorf("%w: %s, %v %v, is at version %d, and its gradient needs version %d: %s",
		ErrStale, what, s.value.Dtype(), s.value.Shape(), now, s.version, advice)
}

// fresh returns an error if a value that the backward step reads was overwritten.
func (n *Node) fresh() error {
	for _, s := range n.saved {
		if err := s.fresh(); err != nil {
			return err
		}
	}
	return nil
}

// abandon ends the node's holds and its call.
func (n *Node) abandon() {
	for _, s := range n.saved {
		s.drop()
	}
	n.saved = nil
	if c := n.call; c != nil {
		n.call = nil
		c.end()
	}
}

// done ends the node's hold on v, if it has one.
func (n *Node) done(v *Variable) {
	if i := slices.IndexFunc(n.saved, func(s saved) bool { return s.Variable == v }); i >= 0 {
		n.saved = slices.Delete(n.saved, i, i+1)
		v.drop()
	}
}

// Backward computes the gradients of loss, which has one element, with respect to every parameter
// and leaf that it was computed from. The tape takes no operations afterwards. Backward frees each
// intermediate value and gradient after its last use.
//
// The gradients of parameters are added to those that the parameters already have; ZeroGrad frees
// these. Backward returns the loss as a tensor that the tape owns. Read it before Close. Reading it
// waits for the device.
//
// A value that the gradients need and that was overwritten since the forward pass, such as a
// parameter by an optimiser's step, is an error that wraps [ErrStale]. After an error the
// parameters keep the gradients that they had before, but Backward may have added to these.
func (t *Tape) Backward(loss *Variable) (*tensor.Tensor, error) {
	if !t.begin("Backward", loss) {
		t.hookEnd()
		return nil, t.Err()
	}
	switch {
	case loss.value.Released():
		t.fail("Backward", fmt.Errorf("the loss: %w", tensor.ErrReleased))
	case loss.value.Elements() != 1:
		t.fail("Backward", fmt.Errorf("%w: the loss is %v: want one element, see Sum and Mean", tensor.ErrShape, loss.value.Shape()))
	case !t.record:
		t.fail("Backward", fmt.Errorf("%w: the tape was made with NoGrad", ErrNoGrad))
	case !loss.needsGrad:
		t.fail("Backward", fmt.Errorf("%w: no parameter or leaf is part of the loss", ErrNoGrad))
	default:
		t.state = backwardState
		t.backward(loss)
	}
	if t.err != nil {
		t.hookEnd()
		return nil, t.err
	}
	return loss.value, nil
}

func (t *Tape) backward(loss *Variable) {
	t.running = true
	defer func() { t.running = false }()
	for _, v := range t.values {
		if v != loss {
			v.Release()
		}
	}
	clear(t.values)
	t.values = t.values[:0]
	for p, v := range t.params {
		t.join(v)
		v.grad = p.grad
		v.letGo()
	}
	root := t.modules[at{}]
	t.inBackward = true
	t.setModule(root)
	defer t.setModule(root)
	t.hookBegin()
	t.root = loss
	seed, err := t.seed(loss)
	t.give("Backward", loss, seed, err)
	t.steps()
	t.forget()
	t.setModule(root)
	t.hookLeave()
	if t.err == nil {
		t.hookEnd()
	}
	t.assignGrads()
}

// assignGrads assigns the gradients that no hook has assigned. After an error it assigns at most
// those of parameters that had one: the free of a gradient that is replaced may fail.
func (t *Tape) assignGrads() {
	for _, v := range t.params {
		t.fail("Backward", t.ownGrad(v, false))
	}
	owned := t.err == nil
	for _, v := range t.params {
		if owned && v.param.grad != nil {
			t.fail("Backward", t.assign(v))
		}
	}
	for _, v := range t.params {
		if t.err == nil {
			t.fail("Backward", t.assign(v))
		}
		v.grad = nil
	}
}

// seed returns the gradient of the loss: 1, or any tensor if the step does not read it.
func (t *Tape) seed(loss *Variable) (*tensor.Tensor, error) {
	i := len(t.nodes) - 1
	for i >= 0 && t.nodes[i].out != loss {
		i--
	}
	if i >= 0 {
		if s, ok := t.nodes[i].call.step.(interface{ seedless() bool }); ok && s.seedless() {
			return t.rt.Share(t.ctx, loss.value)
		}
	}
	var shape [8]int
	return t.rt.Full(t.ctx, 1, loss.value.Dtype(), tensor.AppendShape(shape[:0], loss.value)...)
}

// steps runs the backward steps of the nodes, the last one first. Nodes that a step records, as the
// step of a remat.Checkpoint does, are next.
func (t *Tape) steps() {
	n := &t.current
	defer func() { *n = Node{} }()
	for len(t.nodes) > 0 && t.err == nil {
		i := len(t.nodes) - 1
		*n, t.nodes[i] = t.nodes[i], Node{}
		t.nodes = t.nodes[:i]
		if n.out.grad != nil {
			t.step(n, i)
		}
		n.abandon()
		t.used(n)
	}
}

// step runs the backward step of a node, which was node i.
func (t *Tape) step(n *Node, i int) {
	if err := n.fresh(); err != nil {
		t.fail(n.Name()+" backward", err)
		return
	}
	t.setModule(n.module)
	if !t.hookLoad(n, i) {
		return
	}
	g, c := n.out.grad, n.call
	n.out.grad = nil
	if err := c.step.Backward(c, g); err != nil {
		t.fail(c.name+" backward", err)
	}
}

// Give adds g to the gradient of v, a variable that [Tape.Rerun] has returned, and takes ownership
// of g. A backward step calls it.
func (t *Tape) Give(v *Variable, g *tensor.Tensor) error {
	if t.none() || !t.running || v == nil || v.tape != t || g == nil {
		return fmt.Errorf("%w: Give: want a variable of this tape and its gradient, in a backward step", ErrInvalid)
	}
	t.give(t.current.Name(), v, g, nil)
	return t.err
}

// give adds g to the gradient of v, in place if the memory is exclusive, and takes ownership of g.
func (t *Tape) give(op string, v *Variable, g *tensor.Tensor, err error) {
	t.add(op, v, g, err)
	if v.param != nil && t.err == nil {
		t.gave(v)
	}
}

func (t *Tape) add(op string, v *Variable, g *tensor.Tensor, err error) {
	if err != nil {
		t.fail(op+" backward", err)
	}
	if t.err != nil {
		return
	}
	v.masked = false
	if v.needsGrad && v.grad != nil {
		if g = t.addWide(op, v, g); t.err != nil {
			return
		}
	}
	switch {
	case !v.needsGrad:
		t.free(g)
	case v.grad == nil:
		v.grad = g
	case v.grad.Exclusive():
		if err := t.rt.AddInPlace(t.ctx, v.grad, g); err != nil {
			t.fail(op+" backward", err)
		}
		t.free(g)
	default:
		sum, err := t.rt.Add(t.ctx, v.grad, g)
		if err != nil {
			t.fail(op+" backward", err)
			return
		}
		t.free(g)
		if v.param == nil || v.grad != v.param.grad {
			t.free(v.grad)
		}
		v.grad = sum
	}
}

// AssignGrad assigns the gradient of v, a parameter's variable, to the parameter, in memory that no
// other tensor shares. Backward does that at its end. A hook may do it earlier, in or after Final
// of v. If wide is true, a gradient of 16 bits is upcast to float32.
func (t *Tape) AssignGrad(v *Variable, wide bool) error {
	if t.none() || v == nil || v.param == nil || v.tape != t {
		return fmt.Errorf("%w: AssignGrad: want a parameter's variable of this tape", ErrInvalid)
	}
	if err := t.ownGrad(v, wide); err != nil {
		return err
	}
	return t.assign(v)
}

// ownGrad copies v's gradient if it shares memory, unless it is already the parameter's.
func (t *Tape) ownGrad(v *Variable, wide bool) error {
	g := v.grad
	if t.err != nil || g == nil || g == v.param.grad {
		return t.err
	}
	if wide {
		if g = t.widened("Backward", g); t.err != nil {
			return t.err
		}
		v.grad = g
	}
	if g.Exclusive() {
		return nil
	}
	own, err := t.rt.Copy(t.ctx, g)
	if err != nil {
		return err
	}
	t.free(g)
	v.grad = own
	return t.err
}

// assign makes v's gradient, which shares no memory, the parameter's.
func (t *Tape) assign(v *Variable) error {
	p, g := v.param, v.grad
	v.grad = nil
	if g == nil || g == p.grad {
		return nil
	}
	t.lifetime.Keep(g)
	err := p.grad.ReleaseContext(t.ctx)
	p.grad, p.made = g, g.Bytes()
	if c := t.rt.Capturing(); c != nil {
		c.OnFailure(func() { p.forget(g) })
	}
	return err
}

// A parameter's gradient is final when all recorded operations that read the parameter have given
// their part. Variable.pending counts these operations, once for each input. The count falls when
// the step gives the input a gradient, or after a step that gives none. The node of a checkpoint
// counts for all parameters that its function reads. When the function has run again, the nodes
// that it recorded count instead.

// use counts an operation for each of its trained inputs, and returns their span in the slab's
// list.
func (t *Tape) use(inputs []*Variable) span {
	from := int32(len(t.slab.uses))
	for _, v := range inputs {
		if v.param != nil && v.needsGrad {
			v.pending++
			t.slab.uses = append(t.slab.uses, v)
		}
	}
	return span{from, int32(len(t.slab.uses))}
}

// usesOf returns the trained inputs of n; an input that has got its gradient is nil.
func (t *Tape) usesOf(n *Node) []*Variable {
	if n.uses.to > int32(len(t.slab.uses)) { // the tape was closed by the step
		return nil
	}
	return t.slab.uses[n.uses.from:n.uses.to]
}

// gave counts a gradient that the current step has given v.
func (t *Tape) gave(v *Variable) {
	uses := t.usesOf(&t.current)
	if i := slices.Index(uses, v); i >= 0 {
		uses[i] = nil
		if v.pending--; v.pending == 0 {
			t.hookFinal(v)
		}
	}
}

// unuse takes back the counts of a node that is dropped.
func (t *Tape) unuse(n *Node) {
	for _, v := range t.usesOf(n) {
		if v != nil {
			v.pending--
		}
	}
	n.uses = span{}
}

// used takes back the counts that are left after the node's step.
func (t *Tape) used(n *Node) {
	uses := t.usesOf(n)
	n.uses = span{}
	for _, v := range uses {
		if v == nil {
			continue
		}
		if v.pending--; v.pending == 0 {
			t.hookFinal(v)
		}
	}
}
