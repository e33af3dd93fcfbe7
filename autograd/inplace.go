package autograd

import "github.com/cistern-ml/cistern/tensor"

// An elementwise operation writes its result into its argument's memory where nobody can tell the difference: the value is an operation's of this tape, the
// operation is the last one to read it, its own backward step does not, no recorded operation has saved it, no checkpoint will read it again from outside, and
// no other tensor has the memory. So the peak is that of ReLU(inplace=True) and of add_ in PyTorch without their hazards: nobody promises anything, and a value that a gradient
// needs is never overwritten. What donate allows the runtime does ([tensor.Donate]). That an operation is the last one is known in three ways:
//
//   - a Sequential releases what is between its layers, and knows which of them read their argument in one operation (readsOnce);
//   - a tape that records nothing frees a value when it was read (spend);
//   - the program says so of a value (Variable.Once), and is held to it.

// donate lets the operation that comes next write its result into v's memory, if it is the last one to read v. The caller knows that its backward step does not.
func (t *Tape) donate(v *Variable) {
	if t.outOfPlace || !v.made || !v.owned || !v.held || v.kept || v.users > 1 || !t.lastRead(v) {
		return
	}
	tensor.Donate(v.value)
}

// lastRead reports whether nothing reads v after the operation that is under way, but for backward steps.
func (t *Tape) lastRead(v *Variable) bool {
	return v.handed || v.spentBySelf(t)
}

// spentBySelf reports whether the operation that is under way frees v when it has read it.
func (v *Variable) spentBySelf(t *Tape) bool {
	if v.spared > 0 {
		return false // a layer leaves it to its caller
	}
	return v.once == t.frame+1 || !t.record && t.frames == 0 && v.made
}

// spend frees what op has read, if it was the last to read it: on a tape that records nothing, unless the program keeps it, a layer leaves it to its
// caller, or a frame is open, which frees it at its end.
func (t *Tape) spend(op string, inputs []*Variable) {
	for _, v := range inputs {
		if v.spentBySelf(t) && !v.kept {
			v.spentBy = op
			v.Release()
		}
	}
}

// Once tells the tape that the program has one operation more read v, and returns v: that operation releases it, and another one is an error. So a function of
// several operations holds nothing longer than needed, and an elementwise operation writes its result into v's memory, unless a gradient needs v or somebody
// shares it:
//
//	y := tape.ReLU(tape.Add(x, block.Forward(tape, x).Once()).Once())
//
// It counts for operations in the same [Tape.Frame]: what is read inside of one that is opened later, which is how operations are made that consist of others,
// or by a [Layer], stays until it is released otherwise. On what Keep was called it does nothing.
func (v *Variable) Once() *Variable {
	if v != nil && v.tape != nil {
		v.once = v.tape.frame + 1
	}
	return v
}
