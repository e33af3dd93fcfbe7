package offload

import (
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Which offloaded parameters a tape has on the device. An operation always brings the parameters
// that it reads, so a wrong guess about which group comes early or leaves costs only time and
// memory. A group leaves when an operation reads another group and nothing of it. So the last group
// of a forward pass stays for the backward pass, which begins with it.

// residency tracks the groups that a tape has on the device.
type residency struct {
	autograd.NoHooks
	current      []*parameterGroup // read by the last operations
	before, last *parameterGroup   // the last two groups that came
	run          int               // [autograd.Tape.Run] when last came
	shared       []*parameterGroup // could not leave, because views share memory
	coming       *parameterGroup   // being brought ahead of its use; nil: none
	next, at     int               // backward pass: nodes before next are unsearched; at ran last
	short        bool              // of memory, so the backward pass brings nothing ahead
}

// residencyOf returns the tape's residency, and hooks it the first time.
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

// groupOfVariable returns the group of a variable's parameter, or nil if it has none.
func groupOfVariable(v *autograd.Variable) *parameterGroup { return groupOf(v.Parameter()) }

// bring makes the offloaded parameters among vs usable, and lets current groups leave of which vs
// has no parameter.
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
		if g := groupOfVariable(v); g != nil && !v.Tensor().Released() { // a copy may be freed
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

// Shut moves the value to the host again.
func (g *parameterGroup) Shut(t *autograd.Tape, p *autograd.Parameter) error {
	return g.Leave(t.Context(), p.Value())
}

// canBring returns an error in a capture.
func canBring(t *autograd.Tape) error {
	if c := t.Runtime().Capturing(); c != nil {
		return c.Refuse("an operation on an offloaded parameter", "memory stays where it is while a graph uses it: bring the parameters back before the capture, by offload.Parameters with nil")
	}
	return t.Err()
}

// enter makes g one of the current groups. With learn it records that g came after the last group.
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

// leave moves the parameters of g to the host. Their rounded copies on the tape move too if a
// backward pass may need them, and are freed otherwise.
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

// Leave moves all groups to the host. Nothing on the tape reads parameters any more.
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

// bringNext begins to bring the group that came next the last time that the last two groups came.
// When a checkpoint runs again, it is the group that came next in the checkpoint. In a backward
// pass lookBack does this instead.
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

// early begins to bring x. more is false if there was no memory or an error.
func (g *parameterGroup) early(t *autograd.Tape, x *tensor.Tensor) (more bool, err error) {
	err = g.Ahead(t.Context(), x)
	if errors.Is(err, memcache.ErrOutOfMemory) {
		return false, nil
	}
	return err == nil, err
}
