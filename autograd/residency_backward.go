package autograd

import "slices"

// How a backward pass finds what parameters it needs next: its nodes say it. It looks as far as the next group, so that one group is in use and one
// on its way.

// bringSavedParameters makes usable what the i-th node has saved of offloaded parameters, and begins to bring the next group. After an error it is false.
func (t *Tape) bringSavedParameters(n *node, i int) bool {
	if r := t.resident; r != nil {
		if i < r.next || i > r.at { // a checkpoint has put nodes on top
			r.next = i
		}
		r.at = i
	}
	if n.again { // its operations bring what they read
		return true
	}
	var room [8]*Variable
	reads := room[:0]
	for _, s := range n.saved {
		if s.group() != nil {
			reads = append(reads, s.Variable)
		}
	}
	if len(reads) == 0 {
		return true
	}
	if !t.bringParameters(n.op, reads) {
		return false
	}
	t.lookBack()
	return t.err == nil
}

// lookBack looks at the nodes to come, up to the second group that is not here.
func (t *Tape) lookBack() {
	r := t.resident
	for ; r.next > 0; r.next-- {
		for _, s := range t.nodes[r.next-1].saved {
			g := s.group()
			if g == nil || r.short || slices.Contains(r.current, g) {
				continue
			}
			if r.coming != nil && r.coming != g {
				return
			}
			r.coming = g
			if !t.bringEarly(g, s.value) {
				r.short = true
			}
		}
	}
}

// begin looks from the last of so many nodes on.
func (r *residency) begin(nodes int) { r.next, r.at = nodes, nodes }

// runningAgain is the innermost checkpoint that runs again; nil: none does.
func (c *checkpoint) runningAgain() *checkpoint {
	for c != nil && !c.again {
		c = c.outer
	}
	return c
}

// groupAfter is the group that the checkpoint's function read behind g, at its first time; nil: none.
func (c *checkpoint) groupAfter(g *parameterGroup) *parameterGroup {
	behind := false
	for _, s := range c.inputs {
		switch h := s.group(); {
		case h == g:
			behind = true
		case behind && h != nil:
			return h
		}
	}
	return nil
}
