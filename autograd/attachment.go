package autograd

import (
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd/internal/check"
)

// Attachment connects a feature with a parameter, from Attach to Detach. It must be comparable,
// such as a pointer. [Parameter.ZeroGrad] calls an attachment's method ZeroGrad(context.Context)
// error, if it has one. See also [Opener].
type Attachment interface {
	// Join is called when an operation of a tape reads v, the parameter's variable, and when
	// Backward begins. It usually calls [Tape.Hook].
	Join(t *Tape, v *Variable) error
	// Refuses returns an error if a parameter can't have both attachments.
	Refuses(other Attachment) error
}

// Opener is an [Attachment] that may move the parameter's memory off the device. A tape that
// computes in 16 bits calls Open before it rounds the parameter, and Shut after it.
type Opener interface {
	// Open brings the parameter's value to the device.
	Open(t *Tape, p *Parameter) error
	// Shut allows the value to leave the device again.
	Shut(t *Tape, p *Parameter) error
}

// Attach adds a to the parameter's attachments. It fails if a refuses one of them, or one of them
// refuses a.
func (p *Parameter) Attach(a Attachment) error {
	if err := p.CanAttach(a); err != nil {
		return err
	}
	if !slices.Contains(p.attached, a) {
		p.attached = append(p.attached, a)
	}
	return nil
}

// CanAttach returns the error that Attach would return.
func (p *Parameter) CanAttach(a Attachment) error {
	if err := p.Err(); err != nil {
		return err
	}
	if check.Nil(a) {
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

// Detach removes a from the parameter's attachments.
func (p *Parameter) Detach(a Attachment) {
	if p != nil {
		p.attached = slices.DeleteFunc(p.attached, func(b Attachment) bool { return a == b })
	}
}

// Attached returns the parameter's attachment that is an A, a type or an interface, if it has one.
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
