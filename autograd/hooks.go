package autograd

import (
	"errors"
	"fmt"
	"reflect"
	"slices"

	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/tensor"
)

// Hooks are the events of a tape that a feature, such as offloading or data parallel training,
// handles. Embed [NoHooks] and write the methods that matter. The tape calls them on its goroutine,
// all hooks in the order of [Tape.Hook]. An error sticks to the tape.
type Hooks interface {
	// Read is called before an operation reads vs. The tape reuses that list. After an error the
	// operation does not run.
	Read(t *Tape, op string, vs []*Variable) error
	// Saved is called after the tape has recorded n.
	Saved(t *Tape, n *Node)
	// LetGo is called after the tensor x, of the memory m, lost a holder that was not the last, or
	// with a nil x after a tensor of m was released.
	LetGo(t *Tape, x *tensor.Tensor, m tensor.Memory)
	// Begin is called before the first backward step.
	Begin(t *Tape) error
	// Load is called before the backward step of n, after which n's saved tensors must be on the
	// device. i is the number of nodes that remain.
	Load(t *Tape, n *Node, i int) error
	// Final is called when the gradient of the parameter v is complete. The current step may still
	// read the parameter; from the next Load or End on no step does.
	Final(t *Tape, v *Variable) error
	// End is called after the last backward step, or with Backward's error. If End returns an error
	// that wraps err, it replaces err. End may be called twice.
	End(t *Tape, err error) error
	// Leave is called when the tape no longer reads parameters: after Backward, and by Close and
	// Reset.
	Leave(t *Tape) error
}

// Recorder is a hook that also sees results, and may leave them uncomputed.
type Recorder interface {
	Hooks
	// Bring is called for each tensor of the caller that an operation uses, such as that of
	// [Tape.Input].
	Bring(t *Tape, x *tensor.Tensor)
	// Made is called for each result v of an operation, and for each input. pure reports whether
	// the operation is [Pure].
	Made(t *Tape, op string, v *Variable, pure bool) error
	// Needed is called when a node saves v, or the caller keeps or reads it.
	Needed(v *Variable)
	// Unread returns the dtype and shape of the next result if nothing reads it. A [Pure] operation
	// is then skipped.
	Unread(t *Tape) (dtype tensor.Dtype, shape tensor.Shape, ok bool)
}

// NoHooks implements [Hooks] by methods that do nothing.
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

// Hook adds h to the tape's hooks until Close or Reset. Adding h twice has no effect. h must be
// comparable, such as a pointer.
func (t *Tape) Hook(h Hooks) {
	switch {
	case t.none():
	case check.Nil(h):
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

// Unhook removes h from the tape's hooks.
func (t *Tape) Unhook(h Hooks) {
	if t.none() || check.Nil(h) || !reflect.TypeOf(h).Comparable() {
		return
	}
	if i := slices.Index(t.hooks, h); i >= 0 {
		t.hooks = slices.Delete(t.hooks, i, i+1)
	}
	t.recorders = slices.DeleteFunc(t.recorders, func(r Recorder) bool { return r == h })
}

// Hooked returns the tape's hook of type H, if it has one.
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

// hookRead copies vs, because otherwise vs would escape to the Go heap in each operation.
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
		err := h.End(t, t.err)
		if t.err != nil && errors.Is(err, t.err) {
			t.err = err
		}
		t.fail("Backward", err)
	}
}

func (t *Tape) hookLeave() {
	for _, h := range t.hooks {
		t.fail("Leave", h.Leave(t))
	}
}

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

// unread calls Unread of the recorders, until one reports a result that nothing reads.
func (t *Tape) unread() (dtype tensor.Dtype, shape tensor.Shape, ok bool) {
	for _, r := range t.recorders {
		if dtype, shape, ok = r.Unread(t); ok {
			break
		}
	}
	return dtype, shape, ok
}
