package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/tensor"
)

// A function of the program's may be run without being kept, and run again in the backward pass for what was not kept.

// Mode is what a function computes in besides what it reads: whether the tape trains, its dtype, and its next random numbers.
type Mode struct {
	training bool
	compute  tensor.Dtype
	random   random
}

// Mode is the tape's, with a seed from now on.
func (t *Tape) Mode() Mode {
	if t.none() {
		return Mode{}
	}
	t.ensureSeed()
	return Mode{t.training, t.compute, t.random}
}

// Recorded is what a function has done: how many nodes it has recorded, and how many random operations it has had.
type Recorded struct {
	Nodes  int
	Random uint64
}

// Dropped calls f in a frame, as [Tape.Frame] does, and forgets what f has recorded: no gradient comes to its result. Inside
// of f no leaves can be made.
func (t *Tape) Dropped(f func() *Variable) (y *Variable, did Recorded) {
	if f == nil {
		t.fail("Dropped", fmt.Errorf("%w: the function is nil", ErrInvalid))
	}
	if !t.begin("Dropped") {
		return t.inert(), did
	}
	from, stream := len(t.nodes), t.random.stream
	y = t.twiceRun(f)
	if t.state != "" { // the program has ended the tape
		return nil, did
	}
	did = Recorded{len(t.nodes) - from, t.random.stream - stream}
	t.dropNodes(from)
	return y, did
}

// twiceRun runs a function that is run twice.
func (t *Tape) twiceRun(f func() *Variable) *Variable {
	t.twice++
	defer func() { t.twice-- }()
	return t.inFrame(f)
}

// Rerun calls f in a frame and in the mode m while the backward pass runs, as it was called in the forward pass. What it
// records is stepped next. The result is nil if f has ended the tape.
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
	return y, Recorded{len(t.nodes) - from, t.random.stream - m.random.stream}
}

// dropNodes forgets what was recorded since the from-th node.
func (t *Tape) dropNodes(from int) {
	for i := from; i < len(t.nodes); i++ {
		t.nodes[i].abandon()
		t.unuse(&t.nodes[i])
	}
	clear(t.nodes[from:])
	t.nodes = t.nodes[:from]
}
