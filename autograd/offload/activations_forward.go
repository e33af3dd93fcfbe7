package offload

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Which values a tape offloads, and when. The unit is memory, not a variable: two operations may
// have saved one value, and two values may be views of one memory. Memory moves when only recorded
// operations still hold it, which is when the number of its tensors is the number that the
// operations have saved. This is checked whenever one of the tensors is released. Nothing reads
// such memory before Backward begins, so moving it is as safe as freeing it.

// offload tracks the offloaded values of a tape. Their offloaders outlive the tape.
type offload struct {
	autograd.NoHooks
	with   *tensor.Offloader // of the current Activations; nil outside
	values map[tensor.Memory]*offloadable
	ahead  prefetch

	minBytes int64 // the smallest of the offloaders' limits
	distance int   // the largest of the offloaders' Ahead
}

// offloadable is the memory of values that operations in [Activations] have saved.
type offloadable struct {
	by        *tensor.Offloader
	variables []*autograd.Variable // that operations have saved
	own       []*tensor.Tensor     // of operations of Tape.Func
	away      bool
}

// enterOffload makes o the offloader of operations that are recorded until leave is called.
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

// Saved registers the tensors that n has saved, if n is recorded in [Activations]. Nodes in a
// checkpoint are left out, because they are dropped.
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

// value returns the record of a tensor's memory, which it makes if necessary, or nil if the memory
// is too small.
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

// move offloads v if only recorded operations hold it. x has its memory, unless x was released.
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
