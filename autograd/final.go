package autograd

import "slices"

// A parameter's gradient is final when all recorded operations that read the parameter have given
// their part. Variable.pending counts these operations, once for each input. The count falls when
// the step gives the input a gradient, or after a step that gives none. The node of a checkpoint
// counts for all parameters that its function reads. When the function has run again, the nodes
// that it recorded count instead.

// span is a part of the slab's list of uses.
type span struct{ from, to int32 }

// use counts an operation for those of its inputs that are trained, and returns where they are
// listed.
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

// usesOf returns the trained inputs of n; those that have been given a gradient are nil.
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
		if v.pending--; v.pending == 0 && t.err == nil {
			t.hookFinal(v)
		}
	}
}
