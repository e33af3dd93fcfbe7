package autograd

import (
	"errors"
	"slices"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Which offloaded parameters a tape has on the device. An operation brings what it reads, whatever the tape has thought before, so that none fails for
// want of a parameter: what comes early and what leaves is a matter of time and memory alone. A group leaves when an operation reads another one and
// nothing of it. So the last one of a forward pass stays for the backward pass, which begins with it.

// residency is the groups that a tape knows of.
type residency struct {
	NoHooks
	current      []*parameterGroup // that the last operations have read
	before, last *parameterGroup   // the last two that came
	shared       []*parameterGroup // that could not leave, as views have the memory of one
	coming       *parameterGroup   // that is brought ahead of its use; nil: none
	next, at     int               // of a backward pass: the node before which nobody has looked, and the one that was stepped last
	short        bool              // of memory: the backward pass brings nothing ahead
}

// residencyOf returns the tape's residency, and hooks it at first.
func residencyOf(t *Tape) *residency {
	r, ok := Hooked[*residency](t)
	if !ok {
		r = new(residency)
		t.Hook(r)
	}
	return r
}

// Read brings the offloaded parameters that an operation reads.
func (r *residency) Read(t *Tape, op string, vs []*Variable) error {
	if slices.ContainsFunc(vs, func(v *Variable) bool { return v.group() != nil }) {
		t.bringParameters(op, vs)
	}
	return nil
}

// group is the one of a parameter's variable; nil: it is none, or is not offloaded.
func (v *Variable) group() *parameterGroup {
	if v == nil || v.param == nil {
		return nil
	}
	return groupOf(v.param)
}

// gone reports whether the value is the rounded copy of an offloaded parameter that a tape of NoGrad has freed, and makes again.
func (v *Variable) gone() bool { return v.group() != nil && !v.tape.record && v.value.Released() }

// bringParameters makes usable what an operation reads of offloaded parameters, and lets the groups go that it reads nothing of. After an error it is false.
func (t *Tape) bringParameters(op string, vs []*Variable) bool {
	if !t.canBring(op) {
		return false
	}
	r := residencyOf(t)
	r.current = slices.DeleteFunc(r.current, func(g *parameterGroup) bool {
		if slices.ContainsFunc(vs, func(v *Variable) bool { return v.group() == g }) {
			return false
		}
		t.leaveGroup(g)
		return true
	})
	entered := false
	for _, v := range vs {
		if g := v.group(); g != nil && !slices.Contains(r.current, g) {
			t.enterGroup(g, !entered)
			entered = true
		}
	}
	for _, v := range vs {
		if g := v.group(); g != nil && t.err == nil {
			if v.gone() {
				t.workingCopy(v)
			} else {
				t.fail(op, g.Bring(t.ctx, v.value))
			}
		}
	}
	if entered {
		t.bringNext()
	}
	return t.err == nil
}

// Open brings the value of a parameter.
func (g *parameterGroup) Open(t *Tape, p *Parameter) error {
	if !t.canBring("Param") {
		return nil
	}
	if !slices.Contains(residencyOf(t).current, g) {
		t.enterGroup(g, true)
		defer t.bringNext()
	}
	return g.Bring(t.ctx, p.value)
}

// Shut lets the value leave again.
func (g *parameterGroup) Shut(t *Tape, p *Parameter) error { return g.Leave(t.ctx, p.value) }

// canBring is false in a capture, which fails.
func (t *Tape) canBring(op string) bool {
	if c := t.rt.Capturing(); c != nil {
		t.fail(op, c.Refuse("an operation on an offloaded parameter", capturedParameters))
		return false
	}
	return t.err == nil
}

// enterGroup makes g one of those in use. learn notes that it came after the last one.
func (t *Tape) enterGroup(g *parameterGroup, learn bool) {
	r := residencyOf(t)
	if r.coming != nil {
		if r.coming != g {
			t.leaveGroup(r.coming)
		}
		r.coming = nil
	}
	r.current = append(r.current, g)
	if t.inBackward {
		return
	}
	if learn && r.last != nil && !t.recomputing {
		if r.last.next == nil {
			r.last.next = make(map[*parameterGroup]*parameterGroup)
		}
		r.last.next[r.before] = g
	}
	r.before, r.last = r.last, g
}

// leaveGroup lets the parameters of g go, with their rounded copies on the tape: what a backward pass may need moves, other copies are freed.
func (t *Tape) leaveGroup(g *parameterGroup) {
	for _, p := range g.params {
		t.fail("Offload", g.Leave(t.ctx, p.value))
		if r := residencyOf(t); tensor.MemoryOf(p.value).Tensors() > 1 && !slices.Contains(r.shared, g) {
			r.shared = append(r.shared, g)
		}
		v := t.params[p]
		switch {
		case v == nil || !v.owned || v.kept:
		case t.record:
			t.fail("Offload", g.Leave(t.ctx, v.value))
		default:
			v.letGo()
		}
	}
}

// Leave lets all go, when nothing on the tape reads parameters any more.
func (r *residency) Leave(t *Tape) error {
	if r.coming != nil {
		r.current = append(r.current, r.coming)
	}
	all := append(r.current, r.shared...)
	*r = residency{}
	for _, g := range all {
		for _, p := range g.params {
			t.fail("Offload", g.Leave(t.ctx, p.value))
		}
	}
	return nil
}

// bringNext begins to bring the group that came next when the last two came the last time, or when the checkpoint ran that runs again. In a backward pass the
// nodes say what is next.
func (t *Tape) bringNext() {
	r := residencyOf(t)
	if t.err != nil || t.inBackward {
		return
	}
	var c *checkpoint
	if regions, ok := Hooked[*regions](t); ok {
		c = regions.runningAgain()
	}
	g := r.last.next[r.before]
	if c != nil {
		g = c.groupAfter(r.last)
	}
	if g == nil || slices.Contains(r.current, g) {
		return
	}
	r.coming = g
	for _, p := range g.params {
		x, v := p.value, t.params[p]
		if c != nil && !c.has(v) {
			continue
		}
		if v != nil && v.owned && !v.value.Released() {
			x = v.value
		}
		if !t.bringEarly(g, x) {
			return
		}
	}
}

// bringEarly begins to bring x. It is false where that can't go on: there is no memory, or an error.
func (t *Tape) bringEarly(g *parameterGroup, x *tensor.Tensor) bool {
	err := g.Ahead(t.ctx, x)
	if errors.Is(err, memcache.ErrOutOfMemory) {
		return false
	}
	t.fail("Offload", err)
	return err == nil
}
