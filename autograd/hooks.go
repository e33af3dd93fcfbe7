package autograd

import (
	"fmt"
	"reflect"
	"slices"

	"github.com/cistern-ml/cistern/tensor"
)

// Hooks is what a feature, such as offloading or data parallel training, sees of a tape. Embed [NoHooks] and write the
// methods that matter. They run on the tape's goroutine; several hooks hear an event in the order in which they were added.
// An error sticks to the tape.
type Hooks interface {
	// Read comes before an operation of the forward pass reads vs, a list of the tape's. After an error the operation does
	// not run.
	Read(t *Tape, op string, vs []*Variable) error
	// Saved comes when n was recorded.
	Saved(t *Tape, n *Node)
	// LetGo comes when a holder of memory has let go of it, and others have it still. x is nil if the tensor was released.
	LetGo(t *Tape, x *tensor.Tensor, m tensor.Memory)
	// Begin comes before the first backward step.
	Begin(t *Tape) error
	// Load comes before the backward step of n, and what that has saved must be on the device after it. n has left i nodes
	// behind, which are stepped next.
	Load(t *Tape, n *Node, i int) error
	// Final comes when nothing is added to the gradient of the parameter v any more. The step that gave it may still run,
	// and read the parameter, until Load or End.
	Final(t *Tape, v *Variable) error
	// End comes after the last backward step, or when Backward fails, with its error. It may come twice.
	End(t *Tape, err error) error
	// Leave comes when nothing on the tape reads parameters any more: after Backward, and in Close and Reset.
	Leave(t *Tape) error
}

// Recorder is a hook that also sees results, and may leave them uncomputed.
type Recorder interface {
	Hooks
	// Bring comes when a tensor of the program's comes to the tape.
	Bring(t *Tape, x *tensor.Tensor)
	// Made comes with the result v of an operation, or with what was brought. pure is whether the operation has no other
	// effect than its result.
	Made(t *Tape, op string, v *Variable, pure bool) error
	// Needed comes when somebody will look at v: a node has saved it, or the program keeps or reads it.
	Needed(v *Variable)
	// Unread is the next result's dtype and shape, if nobody reads it: then a pure operation computes nothing.
	Unread(t *Tape) (dtype tensor.Dtype, shape tensor.Shape, ok bool)
}

// NoHooks are hooks that do nothing.
type NoHooks struct{}

// Read does nothing.
func (NoHooks) Read(*Tape, string, []*Variable) error { return nil }

// Saved does nothing.
func (NoHooks) Saved(*Tape, *Node) {}

// LetGo does nothing.
func (NoHooks) LetGo(*Tape, *tensor.Tensor, tensor.Memory) {}

// Begin does nothing.
func (NoHooks) Begin(*Tape) error { return nil }

// Load does nothing.
func (NoHooks) Load(*Tape, *Node, int) error { return nil }

// Final does nothing.
func (NoHooks) Final(*Tape, *Variable) error { return nil }

// End does nothing.
func (NoHooks) End(*Tape, error) error { return nil }

// Leave does nothing.
func (NoHooks) Leave(*Tape) error { return nil }

// Hook lets h see the tape until Close or Reset, once if it is called again. h is of a type that Go can compare, such as
// a pointer.
func (t *Tape) Hook(h Hooks) {
	switch {
	case t.none():
	case isNil(h):
		t.fail("Hook", fmt.Errorf("%w: the hooks are nil", ErrInvalid))
	case !reflect.TypeOf(h).Comparable():
		t.fail("Hook", fmt.Errorf("%w: the hooks are a %T, which Go can't compare: want a pointer to it", ErrInvalid, h))
	case !slices.Contains(t.hooks, h):
		t.hooks = append(t.hooks, h)
		if r, ok := h.(Recorder); ok {
			t.recorders = append(t.recorders, r)
		}
	}
}

// Unhook ends what Hook began.
func (t *Tape) Unhook(h Hooks) {
	if t.none() || isNil(h) || !reflect.TypeOf(h).Comparable() {
		return
	}
	if i := slices.Index(t.hooks, h); i >= 0 {
		t.hooks = slices.Delete(t.hooks, i, i+1)
	}
	t.recorders = slices.DeleteFunc(t.recorders, func(r Recorder) bool { return r == h })
}

// Hooked is the tape's hook of a type, if it has one.
func Hooked[H Hooks](t *Tape) (h H, ok bool) {
	if t.none() {
		return h, false
	}
	for _, x := range t.hooks {
		if h, ok = x.(H); ok {
			return h, true
		}
	}
	return h, false
}

// hookRead copies vs, which would be an object of the Go heap in each operation if a hook could keep it.
func (t *Tape) hookRead(op string, vs []*Variable) bool {
	t.reads = append(t.reads[:0], vs...)
	for _, h := range t.hooks {
		if t.fail(op, h.Read(t, op, t.reads)); t.err != nil {
			break
		}
	}
	clear(t.reads)
	return t.err == nil
}

func (t *Tape) hookSaved(n *Node) {
	for _, h := range t.hooks {
		h.Saved(t, n)
	}
}

func (t *Tape) hookLetGo(x *tensor.Tensor, m tensor.Memory) {
	for _, h := range t.hooks {
		h.LetGo(t, x, m)
	}
}

func (t *Tape) hookBegin() {
	for _, h := range t.hooks {
		t.fail("Backward", h.Begin(t))
	}
}

// hookLoad reports whether the step can run.
func (t *Tape) hookLoad(n *Node, i int) bool {
	for _, h := range t.hooks {
		if err := h.Load(t, n, i); err != nil {
			t.fail(n.Name()+" backward", err)
		}
		if t.err != nil {
			return false
		}
	}
	return true
}

func (t *Tape) hookFinal(v *Variable) {
	if v.grad == nil {
		return
	}
	for _, h := range t.hooks {
		if t.err == nil {
			t.fail("Backward", h.Final(t, v))
		}
	}
}

func (t *Tape) hookEnd() {
	if t.none() {
		return
	}
	for _, h := range t.hooks {
		t.fail("Backward", h.End(t, t.err))
	}
}

func (t *Tape) hookLeave() {
	for _, h := range t.hooks {
		t.fail("Leave", h.Leave(t))
	}
}

// bring calls Bring of the recorders.
func (t *Tape) bring(x *tensor.Tensor) {
	for _, r := range t.recorders {
		r.Bring(t, x)
	}
}

func (t *Tape) hookMade(op string, v *Variable, pure bool) {
	for _, r := range t.recorders {
		t.fail(op, r.Made(t, op, v, pure))
	}
}

func (t *Tape) hookNeeded(v *Variable) {
	if t.none() {
		return
	}
	for _, r := range t.recorders {
		r.Needed(v)
	}
}

// unread is the next result's dtype and shape, if nobody reads it.
func (t *Tape) unread() (dtype tensor.Dtype, shape tensor.Shape, ok bool) {
	for _, r := range t.recorders {
		if dtype, shape, ok = r.Unread(t); ok {
			break
		}
	}
	return dtype, shape, ok
}
