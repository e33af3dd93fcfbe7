package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Recomputation: Dropped runs a function without keeping its nodes, and Rerun runs it again in the
// backward pass.

// Mode is a tape's state that results depend on: training or not, the compute dtype, and the next
// random numbers.
type Mode struct {
	training bool
	compute  tensor.Dtype
	random   tensor.Random
}

// Mode returns the tape's mode. It sets a seed if there is none.
func (t *Tape) Mode() Mode {
	if t.none() {
		return Mode{}
	}
	t.ensureSeed()
	return Mode{t.training, t.compute, t.random}
}

// Recorded counts the nodes that a function has recorded, and its random operations.
type Recorded struct {
	Nodes  int
	Random uint64
}

// Dropped calls f as [Tape.Frame] does and drops the nodes that f records, so that the result gets
// no gradient. f must not make leaves. The result is nil if f has ended the tape.
func (t *Tape) Dropped(f func() *Variable) (y *Variable, did Recorded) {
	if f == nil {
		t.fail("Dropped", fmt.Errorf("%w: the function is nil", ErrInvalid))
	}
	if !t.begin("Dropped") {
		return t.inert(), did
	}
	from, stream := len(t.nodes), t.random.Stream
	y = t.twiceRun(f)
	if t.state != "" { // f has ended the tape
		return nil, did
	}
	did = Recorded{len(t.nodes) - from, t.random.Stream - stream}
	t.dropNodes(from)
	return y, did
}

// Run returns the number, new each time, of the innermost function that Dropped or Rerun calls; 0
// if there is none.
func (t *Tape) Run() int {
	if t.none() {
		return 0
	}
	return t.run
}

// twiceRun calls f, which Rerun calls again, in a frame.
func (t *Tape) twiceRun(f func() *Variable) *Variable {
	outer := t.run
	t.runs++
	t.run = t.runs
	defer func() { t.run = outer }()
	return t.inFrame(f)
}

// Rerun calls f as [Tape.Frame] does, in the mode m. A backward step calls it. The backward pass
// then continues with the nodes that f records. The result is nil if f has ended the tape.
func (t *Tape) Rerun(m Mode, f func() *Variable) (y *Variable, did Recorded) {
	switch {
	case t.none():
		return t.inert(), did
	case f == nil || !t.running || t.state != backwardState:
		t.fail("Rerun", fmt.Errorf("%w: the function is nil, or no backward step runs", ErrInvalid))
		return t.inert(), did
	}
	from, values, recomputing, module := len(t.nodes), len(t.values), t.recomputing, t.module
	t.training, t.compute, t.random = m.training, m.compute, m.random
	t.state, t.inBackward, t.recomputing = "", false, true
	t.setModule(module)
	defer func() {
		if t.state == "" {
			clear(t.values[values:])
			t.state, t.values = backwardState, t.values[:values]
		}
		t.inBackward, t.recomputing = true, recomputing
		t.setModule(module)
	}()
	y = t.twiceRun(f)
	if t.state != "" {
		return nil, did
	}
	return y, Recorded{len(t.nodes) - from, t.random.Stream - m.random.Stream}
}

// Record makes y, which has been computed and is not the result of a node, the result of step:
// Backward calls step.Backward with y's gradient, in the present module. The inputs of its [Call]
// are the variables of holds. The tape takes ownership of holds and own, and drops and frees them
// after the step.
func (t *Tape) Record(name string, y *Variable, step Step, holds []Hold, own ...*tensor.Tensor) {
	if check.Nil(step) || y == nil || y.value == nil || y.tape != t {
		t.fail(name, fmt.Errorf("%w: Record: want a result of this tape and a step", ErrInvalid))
		return
	}
	c := &Call{step: step, out: y}
	reads, from := make([]*Variable, 0, len(holds)), len(t.slab.saved)
	for _, h := range holds {
		if h.of.Variable == nil {
			continue
		}
		t.hookNeeded(h.of.Variable)
		reads, t.slab.saved = append(reads, h.of.Variable), append(t.slab.saved, h.of)
	}
	c.begin(t, name, reads)
	c.own = append(c.own, own...)
	t.push(c, t.slab.saved[from:len(t.slab.saved):len(t.slab.saved)])
	t.endHolds(name, reads)
}

// dropNodes drops the nodes from the from-th on.
func (t *Tape) dropNodes(from int) {
	for i := from; i < len(t.nodes); i++ {
		t.nodes[i].abandon()
		t.unuse(&t.nodes[i])
	}
	clear(t.nodes[from:])
	t.nodes = t.nodes[:from]
}
