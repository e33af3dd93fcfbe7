package offload

import (
	"errors"
	"iter"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// A backward pass brings back the tensors that a node has saved before the node's step. It also
// begins the copies for later steps, so that they run concurrently with this step's kernels.

// prefetch is the state of a backward pass's search ahead of its steps. The distance counts all
// saved tensors, even those that were not offloaded: if many of these come before the next
// offloaded one, that one would occupy memory too early.
type prefetch struct {
	began  bool
	next   int     // nodes before this index are not searched yet
	window []ahead // memory that was searched and not yet reached
	ended  bool    // there was no memory to bring more ahead
}

// ahead is memory that a later step's node has saved.
type ahead struct {
	node   int
	memory tensor.Memory
}

// Load brings back the tensors that n has saved, and begins to bring back those of the next steps.
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

// prefetch begins to bring back the tensors saved by the nodes before the i-th, the last node
// first. When there is no memory for that, it stops for the rest of the pass.
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

// savedBy iterates over the tensors that the node has saved, except parameters.
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
