package offload

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Which values a tape offloads, and when. Memory moves, not variables: two operations may have
// saved one value, and two values may be views of one memory. It moves when whoever shares it only
// waits for the backward pass, which is when as many tensors have it as the recorded operations
// have saved; that is looked at where one of them is let go. Until Backward begins nothing of that
// is read again, so that moving needs no more care than a free.

// offload is what a tape knows of its offloaded values. Their offloaders outlive it.
type offload struct {
	autograd.NoHooks
	with   *tensor.Offloader // that operations are recorded in; nil: none
	values map[tensor.Memory]*offloadable
	ahead  prefetch

	minBytes int64 // the least of the offloaders'
	distance int   // the most of what they want ahead
}

// offloadable is memory that an operation in [Activations] has saved.
type offloadable struct {
	by        *tensor.Offloader
	variables []*autograd.Variable // that operations have saved
	own       []*tensor.Tensor     // of operations of Tape.Func
	away      bool
}

// enterOffload makes o the offloader of what is recorded, until leave.
func enterOffload(t *autograd.Tape, o *tensor.Offloader) (leave func()) {
	all, ok := autograd.Hooked[*offload](t)
	if !ok {
		all = &offload{values: make(map[tensor.Memory]*offloadable), minBytes: o.MinBytes()}
		t.Hook(all)
	}
	all.minBytes, all.distance = min(all.minBytes, o.MinBytes()), max(all.distance, o.Ahead())
	outer := all.with
	all.with = o
	return func() { all.with = outer }
}

// Saved registers the tensors that n has saved, if n is recorded in [Activations] and not in a
// checkpoint, whose nodes are dropped.
func (o *offload) Saved(t *autograd.Tape, n *autograd.Node) {
	if o.with == nil || t.Phase() != autograd.PhaseForward {
		return
	}
	for s := range n.Saved() {
		if s.Parameter() == nil {
			if v := o.value(s.Tensor()); v != nil && !slices.Contains(v.variables, s) {
				v.variables = append(v.variables, s)
			}
		}
	}
	for _, x := range n.Own() {
		if v := o.value(x); v != nil && !slices.Contains(v.own, x) {
			v.own = append(v.own, x)
			o.move(t, v, x)
		}
	}
}

// value is what is noted of a tensor's memory from now on; nil: it is too small.
func (o *offload) value(x *tensor.Tensor) *offloadable {
	m := tensor.MemoryOf(x)
	v := o.values[m]
	if v == nil {
		if x.Bytes() < o.with.MinBytes() {
			return nil
		}
		v = &offloadable{by: o.with}
		o.values[m] = v
	}
	return v
}

// LetGo offloads the memory m if only recorded operations still hold it.
func (o *offload) LetGo(t *autograd.Tape, x *tensor.Tensor, m tensor.Memory) {
	if v := o.values[m]; v != nil {
		o.move(t, v, x)
	}
}

// move offloads v, if nobody but the backward pass waits for it. x has its memory, unless it was released.
func (o *offload) move(t *autograd.Tape, v *offloadable, x *tensor.Tensor) {
	if p := t.Phase(); t.Err() != nil || p != autograd.PhaseForward && p != autograd.PhaseDropped || v.away {
		return
	}
	waiting := 0
	for _, saved := range v.variables {
		if saved.Waits() {
			x = saved.Tensor()
			waiting++
		}
	}
	for _, own := range v.own {
		if !own.Released() {
			x = own
			waiting++
		}
	}
	if waiting == 0 || tensor.MemoryOf(x).Tensors() != waiting {
		return
	}
	away, err := v.by.Offload(t.Context(), x)
	if v.away = away; err != nil {
		t.Fail(fmt.Errorf("offload: Activations: %w", err))
	}
}
