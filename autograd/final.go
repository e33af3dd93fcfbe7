package autograd

import "slices"

// A parameter's gradient is final when all operations that read the parameter have given it theirs. That is counted: an
// operation counts once for each of its inputs that is a trained parameter, from when it is recorded until its step has
// given that input a gradient, or has run or been left out without one. The node of a checkpoint stands for all that its
// function reads, until the function has run again and what that has recorded counts.

// span is a part of the slab's list of uses.
type span struct{ from, to int32 }

// use counts an operation for those of its inputs that are trained, and returns where they are listed.
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

// usesOf are the trained inputs that the operation has not given a gradient; nil stands for one that it has.
func (t *Tape) usesOf(n *Node) []*Variable {
	if n.uses.to > int32(len(t.slab.uses)) { // the tape was closed meanwhile
		return nil
	}
	return t.slab.uses[n.uses.from:n.uses.to]
}

// gave notes that the backward step that runs has given v its gradient.
func (t *Tape) gave(v *Variable) {
	uses := t.usesOf(&t.current)
	if i := slices.Index(uses, v); i >= 0 {
		uses[i] = nil
		if v.pending--; v.pending == 0 {
			t.hookFinal(v)
		}
	}
}

// unuse takes back the counts of an operation whose backward step will not come.
func (t *Tape) unuse(n *Node) {
	for _, v := range t.usesOf(n) {
		if v != nil {
			v.pending--
		}
	}
	n.uses = span{}
}

// used is unuse after the backward step.
func (t *Tape) used(n *Node) {
	uses := t.usesOf(n)
	n.uses = span{}
	for _, v := range uses {
		if v == nil {
			continue
		}
		if v.pending--; v.pending == 0 && t.err == nil {
			t.hookFinal(v)
		}
	}
}
