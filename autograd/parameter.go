package autograd

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/cistern-ml/cistern/autograd/internal/check"
	"github.com/cistern-ml/cistern/autograd/internal/names"
	"github.com/cistern-ml/cistern/memcache"
	"github.com/cistern-ml/cistern/tensor"
)

// Parameter is a tensor that is trained, and its gradient. It outlives tapes; it is not safe for
// concurrent use.
type Parameter struct {
	value, grad *tensor.Tensor
	name        string  // of SetName
	layer       string  // the type of its layer; of SetName
	holder      *Holder // nil: unknown
	before      string  // the module that it was made in; set by the first SetName
	missing     error   // an initialiser's error; there is no value then
	frozen      bool
	made        int64 // size in bytes of the last gradient of this rank alone; 0: there was none
	attached    []Attachment
}

// SetRequiresGrad freezes the parameter or lets it train again (torch.Tensor.requires_grad_). Tapes
// that read a frozen parameter from now on save nothing for its gradient and compute none, and
// optimisers skip it. An existing gradient stays until ZeroGrad.
func (p *Parameter) SetRequiresGrad(yes bool) {
	if p != nil {
		p.frozen = !yes
	}
}

// RequiresGrad reports whether the parameter is trained; it is, until SetRequiresGrad.
func (p *Parameter) RequiresGrad() bool { return p != nil && !p.frozen }

// GradBytes returns the size in bytes of the parameter's last gradient, which may have 16 bits, or
// of the value if there was none.
func (p *Parameter) GradBytes() int64 {
	if p == nil || p.made == 0 {
		return p.Value().Bytes()
	}
	return p.made
}

// Err returns why the parameter has no value, or nil.
func (p *Parameter) Err() error {
	switch {
	case p != nil && p.missing != nil:
		return fmt.Errorf("%w: the parameter was not made: %w", ErrInvalid, p.missing)
	case p == nil || p.value == nil:
		return fmt.Errorf("%w: the parameter is nil", ErrInvalid)
	case p.value.Released():
		return fmt.Errorf("%w: the parameter was released", ErrInvalid)
	}
	return nil
}

// SetName sets the parameter's name and layers, which errors and profiles show. Optimisers call it.
// A later call replaces the name and the module of the parameter's layer. A nil parameter is an
// error that wraps [ErrInvalid]; a released one keeps its label.
func (n Named) SetName() error {
	p, name, layer := n.Parameter, n.Name, n.Layer
	if p == nil || p.value == nil {
		return p.Err()
	}
	p.holder = n.Holder
	if name == p.name && layer == p.layer || p.value.Released() {
		p.name, p.layer = name, layer
		return nil
	}
	l := p.value.Label()
	if p.name == "" {
		p.before = l.Module
	}
	p.name, p.layer = name, layer
	l.Module = names.Holder(p.before, name, layer)
	return p.value.SetLabel(l)
}

// Name returns the name of SetName, or "".
func (p *Parameter) Name() string {
	if p == nil {
		return ""
	}
	return p.name
}

// called returns the parameter's name for an error.
func (p *Parameter) called() string {
	if p.name == "" {
		return "a parameter"
	}
	return fmt.Sprintf("parameter %q", p.name)
}

// NewParameter makes a parameter that owns value, of float32 or float64. Dtypes of 16 bits are what
// tapes compute in: see [Tape.SetComputeDtype].
func NewParameter(value *tensor.Tensor) (*Parameter, error) {
	if value.Released() {
		return nil, fmt.Errorf("autograd: NewParameter: %w: the tensor is nil or was released", ErrInvalid)
	}
	if err := trainable(value); err != nil {
		return nil, fmt.Errorf("autograd: NewParameter: %w", err)
	}
	return newParameter(value)
}

// MissingParameter returns a parameter without a value, for one that could not be made because of
// err. Each use of it fails with err.
func MissingParameter(err error) *Parameter { return &Parameter{missing: err} }

// newParameter is NewParameter without its checks.
func newParameter(value *tensor.Tensor) (*Parameter, error) {
	l := value.Label()
	l.Category = memcache.CategoryParameter
	if err := value.SetLabel(l); err != nil {
		return nil, fmt.Errorf("autograd: NewParameter: %w", err)
	}
	return &Parameter{value: value}, nil
}

// trainable refuses tensors that can't be updated.
func trainable(t *tensor.Tensor) error {
	if d := t.Dtype(); d.Wide() != 0 {
		return fmt.Errorf("%w: %v: small updates would be lost: want a %v parameter and a tape that computes in %v, see SetComputeDtype", tensor.ErrDtype, d, d.Wide(), d)
	}
	return differentiable(t)
}

// differentiable refuses tensors that can't have a gradient.
func differentiable(t *tensor.Tensor) error {
	if d := t.Dtype(); !d.Float() {
		return fmt.Errorf("%w: %v: gradients have a floating-point dtype, such as float32", tensor.ErrDtype, d)
	}
	return nil
}

// Value returns the tensor. The parameter owns it, and optimisers write it in place. An offloaded
// parameter's value may be in host memory: see offload.Parameters.
func (p *Parameter) Value() *tensor.Tensor {
	if p == nil {
		return nil
	}
	return p.value
}

// Grad returns the gradient, or nil if there is none. The gradient of a float32 parameter may have
// 16 bits ([Tape.SetComputeDtype]). The parameter owns it, until ZeroGrad.
func (p *Parameter) Grad() *tensor.Tensor {
	if p == nil {
		return nil
	}
	return p.grad
}

// SetGrad makes g the gradient, which the parameter then owns, and frees nothing.
func (p *Parameter) SetGrad(g *tensor.Tensor) {
	if p != nil {
		p.grad, p.made = g, 0
	}
}

// forget removes and releases g if it is the gradient, because a failed capture never computed it.
func (p *Parameter) forget(g *tensor.Tensor) {
	if p.grad == g {
		p.grad = nil
		_ = g.Release() // the capture reports its own error
	}
}

// ZeroGrad frees the gradient (zero_grad(set_to_none=True)). The span of the free has its parent in
// ctx.
func (p *Parameter) ZeroGrad(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if err := check.Context("autograd: ZeroGrad", ctx); err != nil {
		return err
	}
	g := p.grad
	p.grad = nil
	err := g.ReleaseContext(ctx)
	for _, a := range p.attached {
		if z, ok := a.(interface{ ZeroGrad(context.Context) error }); ok {
			err = errors.Join(err, z.ZeroGrad(ctx))
		}
	}
	return err
}

// Release frees value and gradient. It is idempotent.
func (p *Parameter) Release() error { return p.ReleaseContext(context.Background()) }

// ReleaseContext is Release; the spans of the frees have their parent in ctx.
func (p *Parameter) ReleaseContext(ctx context.Context) error {
	if p == nil {
		return nil
	}
	if err := check.Context("autograd: ReleaseContext", ctx); err != nil {
		return err
	}
	return errors.Join(p.ZeroGrad(ctx), p.value.ReleaseContext(ctx))
}

// Named is a parameter with its name in a model, such as "0.weight".
type Named struct {
	Name string
	*Parameter
	Layer  string  // the type of its layer, such as "Linear"; "": unknown
	Holder *Holder // the outermost layer that holds that layer; nil: unknown
}

// Holder is a layer that holds other layers, one of which has a parameter.
type Holder struct {
	Layer any     // a pointer, to the first one of a chain's layers
	Local string  // the parameter's name in it
	Inner *Holder // the next layer on the way to the parameter, or nil
}

// Parameters are the parameters of a model, in the order of its layers.
type Parameters []Named

// ZeroGrad frees all gradients. The spans of the frees have their parent in ctx.
func (ps Parameters) ZeroGrad(ctx context.Context) error {
	if err := check.Context("autograd: ZeroGrad", ctx); err != nil {
		return err
	}
	var errs []error
	for _, p := range ps {
		if err := p.ZeroGrad(ctx); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Release frees all values and gradients.
func (ps Parameters) Release() error { return ps.ReleaseContext(context.Background()) }

// ReleaseContext is Release; the spans of the frees have their parent in ctx.
func (ps Parameters) ReleaseContext(ctx context.Context) error {
	if err := check.Context("autograd: ReleaseContext", ctx); err != nil {
		return err
	}
	var errs []error
	for _, p := range ps {
		errs = append(errs, p.ReleaseContext(ctx))
	}
	return errors.Join(errs...)
}

// SetRequiresGrad freezes all of them, or lets them train again; see [Parameter.SetRequiresGrad].
func (ps Parameters) SetRequiresGrad(yes bool) {
	for _, p := range ps {
		p.SetRequiresGrad(yes)
	}
}

// Elements returns the number of elements of all parameters.
func (ps Parameters) Elements() int {
	n := 0
	for _, p := range ps {
		n += p.Value().Elements()
	}
	return n
}

// Bytes returns the size of all parameters in bytes, without gradients.
func (ps Parameters) Bytes() int64 {
	var n int64
	for _, p := range ps {
		n += p.Value().Bytes()
	}
	return n
}

// String describes the value, such as "float32 (128, 10) on host".
func (p *Parameter) String() string { return p.Value().String() }

// String returns the name and the value's description, such as "0.weight: float32 (128, 10) on
// host".
func (p Named) String() string { return p.Name + ": " + p.Parameter.String() }

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
