package autograd

import (
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// The backward pass runs the recorded operations in the reverse order of the forward pass. Where the graph branches, as with several losses, another order of the
// same steps may hold less at its peak: the branch first that frees more than it makes. So the sizes of gradients, and what each step frees, are played through
// before the pass, in the reverse order and in one that takes of the steps that could come next the one behind which the least is held; the second is taken if its peak is less. Most
// graphs are chains, in which each operation reads what the one before it has made. They have one order, and pay nothing but the look.
//
// Gradients are the same to the bit: two have the same sum in either order, and where three meet, or two and the one that a parameter has from before, the order in
// which they come is kept. The order is a function of the graph and its sizes, so that all ranks of a Parallel have the same one. A pass with checkpoints,
// whose steps are not known before they run, or with offloaded values, which come back in the reverse order, keeps that.

// ordering is what a tape plays the steps through with, a part of its slab. Numbers are those of variables, and places those of nodes.
type ordering struct {
	of     []ordered
	after  []int32 // of each input of each node: the node that reads it next in the reverse order, where the order counts; -1: none
	steps  []step
	ready  []int32
	order  []int32
	nodes  []node
	live   int64
	peak   int64
	inputs int
}

// ordered is a variable.
type ordered struct {
	producer int32 // the node that made it; -1: none
	reads    int32 // by how many inputs
	saved    int32 // by how many nodes, still
	reader   int32 // the last node that was seen to read it
	grad     int32 // the variable that first had the memory of the gradient; 0: none
	shares   int32 // gradients that have the memory that this variable's had first
}

// step is a node.
type step struct {
	from  int32 // of its inputs in after
	waits int32 // for so many others
}

// considered is how many of the steps that could come next are compared, the last recorded ones.
const considered = 16

// arrange puts the nodes in the order in which steps, which begins with the last one, holds least.
func (t *Tape) arrange() {
	if t.inRecordedOrder || t.offload != nil || t.isChain() {
		return
	}
	o := &t.slab.ordering
	if !o.begin(t) {
		return
	}
	for i := len(t.nodes) - 1; i >= 0; i-- {
		o.run(t, int32(i))
	}
	reverse := o.peak
	o.begin(t)
	o.choose(t)
	if o.peak >= reverse || len(o.order) < len(t.nodes) {
		return
	}
	o.nodes = append(o.nodes[:0], t.nodes...)
	for k, i := range o.order {
		t.nodes[len(t.nodes)-1-k] = o.nodes[i]
	}
	clear(o.nodes)
}

// isChain reports whether each operation reads what the one before it has made.
func (t *Tape) isChain() bool {
	for i := 1; i < len(t.nodes); i++ {
		if !slices.Contains(t.nodes[i].inputs(), t.nodes[i-1].out) {
			return false
		}
	}
	return true
}

// inputs are those of an operation that is no checkpoint.
func (n *node) inputs() []*Variable {
	if n.call != nil {
		return n.call.inputs
	}
	k := slices.Index(n.in[:], nil)
	if k < 0 {
		k = len(n.in)
	}
	return n.in[:k]
}

// begin counts who reads and saves what. It is false if the steps of a node are not known.
func (o *ordering) begin(t *Tape) bool {
	n := len(t.nodes)
	o.of = slices.Grow(o.of[:0], t.variables+1)[:t.variables+1]
	for i := range o.of {
		o.of[i] = ordered{producer: -1, reader: -1}
	}
	o.steps = slices.Grow(o.steps[:0], n)[:n]
	o.inputs, o.live, o.peak = 0, 0, 0
	for i := range t.nodes {
		node := &t.nodes[i]
		if node.many {
			return false
		}
		o.of[node.out.number].producer = int32(i)
		o.steps[i] = step{from: int32(o.inputs)}
		for _, v := range node.inputs() {
			o.of[v.number].reads++
		}
		for _, s := range node.saved {
			o.of[s.number].saved++
		}
		o.inputs += len(node.inputs())
	}
	o.after = slices.Grow(o.after[:0], o.inputs)[:o.inputs]
	for i := range t.nodes {
		for k, v := range t.nodes[i].inputs() {
			of := &o.of[v.number]
			at := int(o.steps[i].from) + k
			o.after[at] = -1
			if of.producer >= 0 {
				o.steps[of.producer].waits++
			}
			meet := of.reads
			if v.param != nil {
				meet++
			}
			if meet > 2 && of.reader >= 0 && of.reader != int32(i) {
				o.after[at] = of.reader
				o.steps[of.reader].waits++
			}
			of.reader = int32(i)
		}
	}
	root := t.root
	o.of[root.number].grad, o.of[root.number].shares = int32(root.number), 1
	return true
}

// choose runs the steps in the order in which, of those that can come next, the one comes that leaves the least behind.
func (o *ordering) choose(t *Tape) {
	o.ready, o.order = o.ready[:0], o.order[:0]
	for i := range o.steps {
		if o.steps[i].waits == 0 {
			o.ready = append(o.ready, int32(i))
		}
	}
	for len(o.ready) > 0 {
		best, least := 0, int64(0)
		for k := max(0, len(o.ready)-considered); k < len(o.ready); k++ {
			made, freed := o.weigh(t, o.ready[k])
			if d := made - freed; k == max(0, len(o.ready)-considered) || d < least || d == least && o.ready[k] > o.ready[best] {
				best, least = k, d
			}
		}
		i := o.ready[best]
		o.ready = slices.Delete(o.ready, best, best+1)
		o.order = append(o.order, i)
		o.run(t, i)
		for k, v := range t.nodes[i].inputs() {
			o.release(o.of[v.number].producer)
			o.release(o.after[int(o.steps[i].from)+k])
		}
	}
}

func (o *ordering) release(i int32) {
	if i < 0 {
		return
	}
	if o.steps[i].waits--; o.steps[i].waits == 0 {
		o.ready = append(o.ready, i)
	}
}

// weigh is what the i-th step would make and free.
func (o *ordering) weigh(t *Tape, i int32) (made, freed int64) {
	n := &t.nodes[i]
	for _, s := range n.saved {
		if o.of[s.number].saved == 1 {
			freed += o.frees(s.Variable)
		}
	}
	if n.call != nil {
		for _, x := range n.call.own {
			freed += blockBytes(x)
		}
	}
	g := o.of[n.out.number].grad
	if g == 0 { // nothing comes here
		return 0, freed
	}
	last := o.of[g].shares == 1
	for k, v := range n.inputs() {
		if !v.needsGrad || o.of[v.number].grad != 0 {
			continue
		}
		if n.passes(k, v, last) {
			last = false
			continue
		}
		made += blockBytes(v.value)
	}
	if last {
		freed += blockBytes(n.out.value)
	}
	return made, freed
}

// passes reports whether the gradient of the k-th input has the memory of the node's own, which is exclusive or not.
func (n *node) passes(k int, v *Variable, exclusive bool) bool {
	return (n.hands == handsOn || n.hands == handsItself && k == 0 && exclusive) && v.value.Bytes() == n.out.value.Bytes()
}

// frees is what the last one who has saved v frees.
func (o *ordering) frees(v *Variable) int64 {
	if !v.owned || v.held || !v.value.Exclusive() {
		return 0
	}
	return blockBytes(v.value)
}

// run plays the i-th step through.
func (o *ordering) run(t *Tape, i int32) {
	n := &t.nodes[i]
	made, freed := o.weigh(t, i)
	added := int64(0) // a gradient that is added to another one is there for a moment
	g := o.of[n.out.number].grad
	if g != 0 {
		for k, v := range n.inputs() {
			of := &o.of[v.number]
			switch {
			case !v.needsGrad:
			case of.grad != 0:
				added = max(added, blockBytes(v.value))
			case n.passes(k, v, o.of[g].shares == 1):
				of.grad = g
				o.of[g].shares++
			default:
				of.grad, of.shares = int32(v.number), of.shares+1
			}
		}
		o.of[g].shares--
	}
	for _, s := range n.saved {
		o.of[s.number].saved--
	}
	o.peak = max(o.peak, o.live+made+added)
	o.live += made - freed
}

// blockBytes is what a tensor takes of the device.
func blockBytes(x *tensor.Tensor) int64 {
	const granule = 512
	return (x.Bytes() + granule - 1) / granule * granule
}

// handing is what the backward step of an operation makes of its gradient's memory.
type handing uint8

const (
	handsNothing handing = iota // gradients have memory of their own
	handsItself                 // the first input's gradient has the memory, unless it is shared
	handsOn                     // the gradients of all inputs share the memory
)

// handing tells of the operation that was recorded last, if it is out's.
func (t *Tape) handing(out *Variable, h handing) *Variable {
	if k := len(t.nodes) - 1; k >= 0 && t.nodes[k].out == out {
		t.nodes[k].hands = h
	}
	return out
}
