package offload

import (
	"errors"
	"iter"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// How a backward pass brings back what the forward pass has offloaded: what an operation has saved
// before its step, and before that the copies for the steps to come, so that they run beside this
// step's kernels.

// prefetch is how far ahead of its steps a backward pass has looked. The distance is counted in
// saved tensors, those that were not offloaded too: where there are many of these before the next
// offloaded one, that one would only be in their way.
type prefetch struct {
	began  bool
	next   int     // the node before which nobody has looked
	window []ahead // what has been looked at and not been reached
	ended  bool    // memory is short
}

// ahead is memory that a node to come has saved.
type ahead struct {
	node   int
	memory tensor.Memory
}

// Load brings back the tensors that n has saved, and begins to bring back those of the nodes before
// it.
func (o *offload) Load(t *autograd.Tape, n *autograd.Node, i int) error {
	for x := range savedBy(n) {
		if v := o.values[tensor.MemoryOf(x)]; v != nil && v.away {
			if err := v.by.Fetch(t.Context(), x); err != nil {
				return err
			}
			v.away = false
		}
	}
	return o.prefetch(t, i)
}

// prefetch looks at the nodes before the i-th, the last first, and begins to bring back what they
// have saved. Where there is no memory for that the rest of the pass does without.
func (o *offload) prefetch(t *autograd.Tape, i int) error {
	p := &o.ahead
	if !p.began || p.next > i {
		p.began, p.next = true, i
	}
	p.window = slices.DeleteFunc(p.window, func(a ahead) bool { return a.node >= i })
	for ; p.next > 0 && len(p.window) < o.distance && !p.ended; p.next-- {
		for x := range savedBy(&t.Nodes()[p.next-1]) {
			m := tensor.MemoryOf(x)
			if x.Bytes() < o.minBytes || slices.ContainsFunc(p.window, func(a ahead) bool { return a.memory == m }) {
				continue
			}
			if v := o.values[m]; v != nil && v.away {
				err := v.by.Prefetch(t.Context(), x)
				if p.ended = errors.Is(err, memcache.ErrOutOfMemory); p.ended {
					return nil
				}
				if err != nil {
					return err
				}
			}
			p.window = append(p.window, ahead{p.next - 1, m})
		}
	}
	return nil
}

// savedBy are what the node has saved, except parameters.
func savedBy(n *autograd.Node) iter.Seq[*tensor.Tensor] {
	return func(yield func(*tensor.Tensor) bool) {
		for s := range n.Saved() {
			if s.Parameter() == nil && !yield(s.Tensor()) {
				return
			}
		}
		for _, x := range n.Own() {
			if !yield(x) {
				return
			}
		}
	}
}
