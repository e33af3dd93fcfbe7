package autograd

import "slices"

// How a backward pass finds what parameters it needs next: its nodes say it. It looks as far as the next group, so that one group is in use and one
// on its way.

// Begin looks from the last node on.
func (r *residency) Begin(t *Tape) error {
	r.next, r.at = len(t.nodes), len(t.nodes)
	return nil
}

// Load brings the offloaded parameters that n has saved, and begins to bring the next group.
func (r *residency) Load(t *Tape, n *Node, i int) error {
	if i < r.next || i > r.at { // a checkpoint has put nodes on top
		r.next = i
	}
	r.at = i
	if n.reruns() { // its operations bring what they read
		return nil
	}
	var room [8]*Variable
	reads := room[:0]
	for s := range n.Saved() {
		if s.group() != nil {
			reads = append(reads, s)
		}
	}
	if len(reads) > 0 && t.bringParameters(n.Name(), reads) {
		r.lookBack(t)
	}
	return nil
}

// lookBack looks at the nodes to come, up to the second group that is not here.
func (r *residency) lookBack(t *Tape) {
	for ; r.next > 0; r.next-- {
		for s := range t.nodes[r.next-1].Saved() {
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
	for _, s := range c.holds {
		switch h := s.group(); {
		case h == g:
			behind = true
		case behind && h != nil:
			return h
		}
	}
	return nil
}
