package autograd

import (
	"fmt"

	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Begin reports whether the operation op on vs can start: no error sticks, and every operand is a
// live variable of this tape. Otherwise the tape has an error. A function that is not an [Op] calls
// it.
func (t *Tape) Begin(op string, vs ...*Variable) bool { return t.begin(op, vs...) }

// begin is Begin for operations of the package.
func (t *Tape) begin(op string, vs ...*Variable) bool {
	if t.none() {
		return false
	}
	if t.state != "" {
		t.fail(op, fmt.Errorf("%w: it was %s: make a new one for every step, or Reset it", ErrSpent, t.state))
	}
	for i, v := range vs {
		switch {
		case v == nil:
			t.fail(op, fmt.Errorf("%w: operand %d is nil", ErrInvalid, i+1))
		case v.tape.none():
			t.fail(op, fmt.Errorf("operand %d: %w", i+1, errNoTape))
		case v.tape != t:
			t.fail(op, fmt.Errorf("%w: operand %d: bring tensors to this tape with Input, Leaf or Param", ErrTape, i+1))
		case v.param != nil && v.param.attached != nil:
			t.join(v)
		}
	}
	if t.err != nil || len(t.hooks) > 0 && len(vs) > 0 && !t.hookRead(op, vs) {
		return false
	}
	for i, v := range vs {
		if v.param != nil && v.released() && !t.record { // FreeCopy has freed it
			if t.workingCopy(v); t.err != nil {
				return false
			}
		}
		if v.released() {
			t.fail(op, v.releasedError(fmt.Sprintf("operand %d", i+1)))
			return false
		}
	}
	return true
}

// result makes the variable of an operation's result, which the tape owns.
func (t *Tape) result(op string, value *tensor.Tensor, err error, pure bool) *Variable {
	return t.own(op, value, err, pure, true)
}

// own makes the variable of a value that the tape owns. made reports whether an operation made it.
func (t *Tape) own(op string, value *tensor.Tensor, err error, pure, made bool) *Variable {
	v := t.newVariable()
	if err != nil {
		t.fail(op, err)
		return v
	}
	v.value, v.owned, v.held, v.made, v.holds = value, true, true, made, 1
	t.expect(v)
	if len(t.recorders) > 0 && value != nil {
		t.hookMade(op, v, pure)
	}
	return v
}

// expect prepares the end of the program's hold on v: by Backward, by the end of the frame, or else
// by the last reader.
func (t *Tape) expect(v *Variable) {
	switch {
	case t.record || t.scope.frame:
		t.values = append(t.values, v)
	case v.made:
		v.markLast()
	}
}

// Input brings x to the tape as a constant. The tape shares x's memory: x may be released, but its
// elements must not be overwritten before Backward has returned. A tape that computes in 16 bits
// has a copy of a float32 x; see [Tape.SetComputeDtype].
func (t *Tape) Input(x *tensor.Tensor) *Variable {
	if !t.begin("Input") {
		return t.inert()
	}
	if !x.Released() && t.rounds(x) {
		t.bring(x)
		own, err := t.rounded(x, memcache.CategoryInput)
		return t.brought("Input", own, err)
	}
	return t.share("Input", x)
}

// share is Input for a tensor that keeps its dtype.
func (t *Tape) share(op string, x *tensor.Tensor) *Variable {
	t.bring(x)
	shared, err := t.rt.Share(t.ctx, x)
	return t.brought(op, shared, err)
}

// brought makes the variable of a value that no operation has made.
func (t *Tape) brought(op string, x *tensor.Tensor, err error) *Variable {
	return t.own(op, x, err, false, false)
}

// Upload brings a copy of data to the tape as a constant; see [tensor.FromSlice]. The tape owns it,
// and frees it after its last use or in Close.
func Upload[T tensor.Element](t *Tape, data []T, shape ...int) *Variable {
	if !t.begin("Upload") {
		return t.inert()
	}
	x, err := tensor.FromSlice(memcache.WithCategory(t.ctx, memcache.CategoryInput), t.rt, data, shape...)
	if err == nil && t.rounds(x) {
		wide := x
		x, err = t.rounded(wide, memcache.CategoryInput)
		t.free(wide)
	}
	return t.brought("Upload", x, err)
}

// Leaf is Input for a tensor whose gradient is wanted: after Backward it is [Variable.Grad].
func (t *Tape) Leaf(x *tensor.Tensor) *Variable {
	v := t.Input(x)
	if v.value == nil {
		return v
	}
	if t.run > 0 {
		t.fail("Leaf", fmt.Errorf("%w: inside a Checkpoint, which runs twice: make leaves outside of it", ErrInvalid))
		return t.inert()
	}
	if err := differentiable(x); err != nil {
		t.fail("Leaf", err)
		return t.inert()
	}
	v.needsGrad = t.record
	return v
}

// Param brings a parameter to the tape. After Backward its gradient is [Parameter.Grad], added to
// an earlier one. A second call returns the same variable. On a tape that computes in 16 bits its
// value is a copy; see [Tape.SetComputeDtype]. Param(nil) is nil, for layers without bias.
func (t *Tape) Param(p *Parameter) *Variable {
	if p == nil {
		return nil
	}
	if !t.begin("Param") {
		return t.inert()
	}
	if v := t.params[p]; v != nil {
		if err := t.inOneDtype(v); err != nil {
			t.fail("Param", err)
			return t.inert()
		}
		return v
	}
	if err := p.Err(); err != nil {
		t.fail("Param", err)
		return t.inert()
	}
	v := t.newVariable()
	v.value, v.param, v.needsGrad = p.value, p, t.record && !p.frozen
	if t.rounds(p.value) {
		if t.workingCopy(v); t.err != nil {
			return t.inert()
		}
	}
	t.params[p] = v
	t.join(v)
	return v
}
