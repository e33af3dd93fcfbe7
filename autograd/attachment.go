package autograd

import (
	"fmt"
	"slices"
)

// Attachment is what a feature has to do with a parameter, from Attach to Detach. It is of a type that Go can compare, such
// as a pointer. One with a method ZeroGrad(context.Context) error hears of [Parameter.ZeroGrad]; see [Opener], too.
type Attachment interface {
	// Join comes whenever an operation of a tape reads the parameter, whose variable v is, and when Backward begins. Usually
	// it is a call of [Tape.Hook].
	Join(t *Tape, v *Variable) error
	// Refuses is an error if a parameter can't have the other attachment besides this one.
	Refuses(other Attachment) error
}

// Opener is an [Attachment] that may keep the parameter's memory elsewhere. A tape that computes in 16 bits calls Open before
// it rounds the parameter, and Shut after it.
type Opener interface {
	// Open makes the parameter's value usable.
	Open(t *Tape, p *Parameter) error
	// Shut lets it go again.
	Shut(t *Tape, p *Parameter) error
}

// Attach adds a to what the parameter has, unless one of both refuses the other.
func (p *Parameter) Attach(a Attachment) error {
	if err := p.CanAttach(a); err != nil {
		return err
	}
	if !slices.Contains(p.attached, a) {
		p.attached = append(p.attached, a)
	}
	return nil
}

// CanAttach is the error that Attach would return.
func (p *Parameter) CanAttach(a Attachment) error {
	if err := p.unusable(); err != nil {
		return err
	}
	if isNil(a) {
		return fmt.Errorf("%w: the attachment is nil", ErrInvalid)
	}
	for _, other := range p.attached {
		err := other.Refuses(a)
		if err == nil {
			err = a.Refuses(other)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Detach takes a away.
func (p *Parameter) Detach(a Attachment) {
	if p != nil {
		p.attached = slices.DeleteFunc(p.attached, func(b Attachment) bool { return a == b })
	}
}

// Attached is the parameter's attachment of a type or with the methods of an interface, if it has one.
func Attached[A any](p *Parameter) (a A, ok bool) {
	if p == nil {
		return a, false
	}
	for _, x := range p.attached {
		if a, ok = x.(A); ok {
			return a, true
		}
	}
	return a, false
}

// join calls Join of the attachments of v's parameter.
func (t *Tape) join(v *Variable) {
	for _, a := range v.param.attached {
		t.fail("Param", a.Join(t, v))
	}
}
