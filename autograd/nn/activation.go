package nn

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/internal/check"
)

// Activations as layers. They have no parameters, and the zero value of each is PyTorch's default.

// unchanged is embedded in layers without parameters.
type unchanged struct{}

// Parameters is empty.
func (unchanged) Parameters() autograd.Parameters { return nil }

// Identity returns its argument (torch.nn.Identity).
type Identity struct{ unchanged }

// Forward returns x itself.
func (Identity) Forward(_ *autograd.Tape, x *autograd.Variable) *autograd.Variable { return x }

// Sigmoid is the activation 1 / (1 + exp(-x)) (torch.nn.Sigmoid).
type Sigmoid struct{ unchanged }

// Forward returns [autograd.Tape.Sigmoid].
func (Sigmoid) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.Sigmoid(x) })
}

// Tanh is the hyperbolic tangent (torch.nn.Tanh).
type Tanh struct{ unchanged }

// Forward returns [autograd.Tape.Tanh].
func (Tanh) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.Tanh(x) })
}

// GELU is x times the normal distribution function of x (torch.nn.GELU).
type GELU struct {
	Tanh bool // the approximation by a hyperbolic tangent (approximate="tanh")
	unchanged
}

// Forward returns [autograd.Tape.GELU] or [autograd.Tape.GELUTanh].
func (l GELU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable {
		if l.Tanh {
			return t.GELUTanh(x)
		}
		return t.GELU(x)
	})
}

// SiLU is x times its sigmoid (torch.nn.SiLU).
type SiLU struct{ unchanged }

// Forward returns [autograd.Tape.SiLU].
func (SiLU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.SiLU(x) })
}

// ELU is x where it is positive, and Alpha * (exp(x) - 1) elsewhere (torch.nn.ELU).
type ELU struct {
	Alpha *float64 // nil: 1
	unchanged
}

// Forward returns [autograd.Tape.ELU].
func (l ELU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.ELU(x, check.Or(l.Alpha, 1)) })
}

// Softplus is log(1 + exp(Beta*x)) / Beta, and x where Beta*x is above the threshold
// (torch.nn.Softplus).
type Softplus struct {
	Beta      *float64 // nil: 1
	Threshold *float64 // nil: 20
	unchanged
}

// Forward returns [autograd.Tape.Softplus].
func (l Softplus) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.Softplus(x, check.Or(l.Beta, 1), check.Or(l.Threshold, 20)) })
}

// LeakyReLU is x where it is positive, and Slope * x elsewhere (torch.nn.LeakyReLU).
type LeakyReLU struct {
	Slope *float64 // nil: 0.01
	unchanged
}

// Forward returns [autograd.Tape.LeakyReLU].
func (l LeakyReLU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.LeakyReLU(x, check.Or(l.Slope, 0.01)) })
}

// Hardtanh clamps x to Min and Max (torch.nn.Hardtanh).
type Hardtanh struct {
	Min, Max float64 // both 0: -1 and 1
	unchanged
}

// Forward returns [autograd.Tape.Hardtanh].
func (l Hardtanh) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l.Min == 0 && l.Max == 0 {
		l.Min, l.Max = -1, 1
	}
	return t.Layer(nil, "", func() *autograd.Variable { return t.Hardtanh(x, l.Min, l.Max) })
}

// LogSigmoid is the logarithm of the sigmoid (torch.nn.LogSigmoid).
type LogSigmoid struct{ unchanged }

// Forward returns [autograd.Tape.LogSigmoid].
func (LogSigmoid) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.LogSigmoid(x) })
}

// Softmax is the softmax along an axis (torch.nn.Softmax). PyTorch's default axis depends on the
// rank, and is deprecated.
type Softmax struct {
	Axis []int // one, or nil for the last dimension
	unchanged
}

// Forward returns [autograd.Tape.Softmax].
func (l Softmax) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.Softmax(x, l.Axis...) })
}

// LogSoftmax is the logarithm of the softmax along an axis (torch.nn.LogSoftmax). PyTorch's default
// axis depends on the rank, and is deprecated.
type LogSoftmax struct {
	Axis []int // one, or nil for the last dimension
	unchanged
}

// Forward returns [autograd.Tape.LogSoftmax].
func (l LogSoftmax) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.LogSoftmax(x, l.Axis...) })
}
