package offload

import (
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Which offloaded parameters a tape has on the device. An operation brings what it reads, whatever
// the tape has thought before, so that none fails for want of a parameter: what comes early and
// what leaves is a matter of time and memory alone. A group leaves when an operation reads another
// one and nothing of it. So the last one of a forward pass stays for the backward pass, which
// begins with it.

// residency is the groups that a tape knows of.
type residency struct {
	autograd.NoHooks
	current      []*parameterGroup // that the last operations have read
	before, last *parameterGroup   // the last two that came
	run          int               // [autograd.Tape.Run] then
	shared       []*parameterGroup // that could not leave, as views have the memory of one
	coming       *parameterGroup   // that is brought ahead of its use; nil: none
	next, at     int               // of a backward pass: the node before which nobody has looked, and the one that was stepped last
	short        bool              // of memory: the backward pass brings nothing ahead
}

// residencyOf returns the tape's residency, and hooks it at first.
func residencyOf(t *autograd.Tape) *residency {
	r, ok := autograd.Hooked[*residency](t)
	if !ok {
		r = new(residency)
		t.Hook(r)
	}
	return r
}

// Read brings the offloaded parameters that an operation reads.
func (r *residency) Read(t *autograd.Tape, _ string, vs []*autograd.Variable) error {
	if slices.ContainsFunc(vs, func(v *autograd.Variable) bool { return groupOfVariable(v) != nil }) {
		return r.bring(t, vs)
	}
	return nil
}

// groupOfVariable is the group of a parameter's variable; nil: it is none, or is not offloaded.
func groupOfVariable(v *autograd.Variable) *parameterGroup { return groupOf(v.Parameter()) }

// bring makes usable what an operation reads of offloaded parameters, and lets the groups go that it
// reads nothing of.
func (r *residency) bring(t *autograd.Tape, vs []*autograd.Variable) error {
	if err := canBring(t); err != nil {
		return err
	}
	for i := 0; i < len(r.current); i++ {
		g := r.current[i]
		if slices.ContainsFunc(vs, func(v *autograd.Variable) bool { return groupOfVariable(v) == g }) {
			continue
		}
		r.current = slices.Delete(r.current, i, i+1)
		i--
		if err := r.leave(t, g); err != nil {
			return err
		}
	}
	entered := false
	for _, v := range vs {
		if g := groupOfVariable(v); g != nil && !slices.Contains(r.current, g) {
			if err := r.enter(t, g, !entered); err != nil {
				return err
			}
			entered = true
		}
	}
	for _, v := range vs {
		if g := groupOfVariable(v); g != nil && !v.Tensor().Released() { // a copy that is freed is made again
			if err := g.Bring(t.Context(), v.Tensor()); err != nil {
				return err
			}
		}
	}
	if entered {
		return r.bringNext(t)
	}
	return nil
}

// Open brings the value of a parameter.
func (g *parameterGroup) Open(t *autograd.Tape, p *autograd.Parameter) error {
	if err := canBring(t); err != nil {
		return err
	}
	if r := residencyOf(t); !slices.Contains(r.current, g) {
		if err := r.enter(t, g, true); err != nil {
			return err
		}
		if err := r.bringNext(t); err != nil {
			return err
		}
	}
	return g.Bring(t.Context(), p.Value())
}

// Shut lets the value leave again.
func (g *parameterGroup) Shut(t *autograd.Tape, p *autograd.Parameter) error {
	return g.Leave(t.Context(), p.Value())
}

// canBring is an error in a capture.
func canBring(t *autograd.Tape) error {
	if c := t.Runtime().Capturing(); c != nil {
		return c.Refuse("an operation on an offloaded parameter", "memory stays where it is while a graph uses it: bring the parameters back before the capture, by offload.Parameters with nil")
	}
	return t.Err()
}

// enter makes g one of the groups in use. learn records that it came after the last one.
func (r *residency) enter(t *autograd.Tape, g *parameterGroup, learn bool) error {
	if c := r.coming; c != nil {
		if r.coming = nil; c != g {
			if err := r.leave(t, c); err != nil {
				return err
			}
		}
	}
	r.current = append(r.current, g)
	phase := t.Phase()
	if phase == autograd.PhaseBackward {
		return nil
	}
	if learn && r.last != nil && phase != autograd.PhaseRerun {
		if r.last.next == nil {
			r.last.next = make(map[*parameterGroup]*parameterGroup)
		}
		r.last.next[r.before] = g
		if r.last.after = nil; r.run == t.Run() {
			r.last.after = g
		}
	}
	r.before, r.last, r.run = r.last, g, t.Run()
	return nil
}

// leave lets the parameters of g go, with their rounded copies on the tape: copies that a backward
// pass may need move, others are freed.
func (r *residency) leave(t *autograd.Tape, g *parameterGroup) error {
	for _, p := range g.params {
		if err := g.Leave(t.Context(), p.Value()); err != nil {
			return err
		}
		if tensor.MemoryOf(p.Value()).Tensors() > 1 && !slices.Contains(r.shared, g) {
			r.shared = append(r.shared, g)
		}
		if v := t.Variable(p); v.Copy() != nil && !v.FreeCopy() {
			if err := g.Leave(t.Context(), v.Copy()); err != nil {
				return err
			}
		}
	}
	return nil
}

// Leave lets all go, when nothing on the tape reads parameters any more.
func (r *residency) Leave(t *autograd.Tape) error {
	if r.coming != nil {
		r.current = append(r.current, r.coming)
	}
	all := append(r.current, r.shared...)
	*r = residency{}
	var errs []error
	for _, g := range all {
		for _, p := range g.params {
			errs = append(errs, g.Leave(t.Context(), p.Value()))
		}
	}
	return errors.Join(errs...)
}

// bringNext begins to bring the group that came next when the last two came the last time. Where a
// checkpoint runs again, it is the group that came next in the checkpoint. In a backward pass the
// nodes say what is next.
func (r *residency) bringNext(t *autograd.Tape) error {
	phase := t.Phase()
	if phase == autograd.PhaseBackward {
		return nil
	}
	g := r.last.next[r.before]
	if phase == autograd.PhaseRerun {
		g = r.last.after
	}
	if g == nil || slices.Contains(r.current, g) {
		return nil
	}
	r.coming = g
	for _, p := range g.params {
		x := p.Value()
		if v := t.Variable(p); v != nil && !v.Tensor().Released() {
			x = v.Tensor()
		}
		if more, err := g.early(t, x); !more {
			return err
		}
	}
	return nil
}

// early begins to bring x. more is false where that can't go on: there is no memory, or an error.
func (g *parameterGroup) early(t *autograd.Tape, x *tensor.Tensor) (more bool, err error) {
	err = g.Ahead(t.Context(), x)
	if errors.Is(err, memcache.ErrOutOfMemory) {
		return false, nil
	}
	return err == nil, err
}
