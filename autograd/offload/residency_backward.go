package offload

import (
	"slices"

	"github.com/cistern-ml/cistern/autograd"
)

// A backward pass finds the parameters that it needs next in its nodes. It searches up to the next
// group, so that one group is in use and one in flight.

// Begin starts the search at the last node.
func (r *residency) Begin(t *autograd.Tape) error {
	r.next, r.at = len(t.Nodes()), len(t.Nodes())
	return nil
}

// Load brings the offloaded parameters that n has saved, and begins to bring the next group.
func (r *residency) Load(t *autograd.Tape, n *autograd.Node, i int) error {
	if i < r.next || i > r.at { // a checkpoint has added nodes
		r.next = i
	}
	r.at = i
	if n.Reruns() { // its operations bring the parameters they read
		return nil
	}
	var room [8]*autograd.Variable
	reads := room[:0]
	for s := range n.Saved() {
		if groupOfVariable(s) != nil {
			reads = append(reads, s)
		}
	}
	if len(reads) == 0 {
		return nil
	}
	if err := r.bring(t, reads); err != nil {
		return err
	}
	return r.lookBack(t)
}

// lookBack searches the nodes of later steps, up to the second group that is not current, and
// begins to bring the first one.
func (r *residency) lookBack(t *autograd.Tape) error {
	nodes := t.Nodes()
	for ; r.next > 0; r.next-- {
		for s := range nodes[r.next-1].Saved() {
			g := groupOfVariable(s)
			if g == nil || r.short || slices.Contains(r.current, g) {
				continue
			}
			if r.coming != nil && r.coming != g {
				return nil
			}
			r.coming = g
			more, err := g.early(t, s.Tensor())
			if err != nil {
				return err
			}
			r.short = !more
		}
	}
	return nil
}
