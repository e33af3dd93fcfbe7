package autograd

import (
	"fmt"
	"strconv"

	"github.com/cistern-ml/cistern/tensor"
)

// Layer is a function with parameters: a dense layer, an activation, a model.
type Layer interface {
	// Forward computes the layer on t's tape. It leaves x to the caller and releases what it made on the way.
	Forward(t *Tape, x *Variable) *Variable
	// Parameters are the layer's parameters with their names inside the layer.
	Parameters() Parameters
}

// Linear is a dense layer, y = x Weightᵀ + Bias, for x (rows, in) (torch.nn.Linear).
type Linear struct {
	Weight *Parameter // (out, in)
	Bias   *Parameter // (out); nil: none
}

// Forward returns x Weightᵀ + Bias.
func (l *Linear) Forward(t *Tape, x *Variable) *Variable { return l.forward(t, x, false) }

func (l *Linear) forward(t *Tape, x *Variable, relu bool) *Variable {
	defer x.spare()()
	if l == nil {
		t.fail("Linear", fmt.Errorf("%w: the layer is nil", ErrInvalid))
		return t.inert()
	}
	own, local := l.Bias, "bias" // weights are tied, biases are not
	if own == nil || own.name == "" {
		own, local = l.Weight, "weight"
	}
	defer t.setModule(t.enterLayer(own, local))
	w, bias := t.Param(l.Weight), t.optionalParam(l.Bias)
	if relu {
		return t.LinearReLU(x, w, bias)
	}
	return t.Linear(x, w, bias)
}

// Parameters are "weight" and, if there is one, "bias".
func (l *Linear) Parameters() Parameters {
	if l == nil {
		return nil
	}
	ps := Parameters{{"weight", l.Weight}}
	if l.Bias != nil {
		ps = append(ps, Named{"bias", l.Bias})
	}
	return ps
}

// ReLU is the activation max(x, 0) (torch.nn.ReLU).
type ReLU struct{}

// Forward returns max(x, 0).
func (ReLU) Forward(t *Tape, x *Variable) *Variable {
	defer x.spare()()
	return t.ReLU(x)
}

// Parameters is empty.
func (ReLU) Parameters() Parameters { return nil }

// Flatten makes a matrix of its argument: all dimensions but the first become one (torch.nn.Flatten).
type Flatten struct{}

// Forward returns x as (rows, the rest), in the same memory.
func (Flatten) Forward(t *Tape, x *Variable) *Variable {
	defer x.spare()()
	if !t.begin("Flatten", x) {
		return t.inert()
	}
	shape := x.Shape()
	if len(shape) == 0 {
		t.fail("Flatten", fmt.Errorf("%w: a scalar has no rows", tensor.ErrShape))
		return t.inert()
	}
	n := 1
	for _, d := range shape[1:] {
		n *= d
	}
	return t.Reshape(x, shape[0], n)
}

// Parameters is empty.
func (Flatten) Parameters() Parameters { return nil }

// Sequential is a chain of layers (torch.nn.Sequential).
type Sequential []Layer

// Forward applies the layers one after the other. It releases what is between them as soon as the next layer
// has it, and computes a [Linear] with a [ReLU] after it as one, in place. Activations, and [Dropout], work in place too where no gradient needs their argument.
func (s Sequential) Forward(t *Tape, x *Variable) *Variable {
	if t.none() {
		return t.inert()
	}
	mine := x.take()
	defer x.spare()()
	defer t.setModule(t.enterChain(s))
	outer := t.module
	y := x
	for i := 0; i < len(s); i++ {
		last := y
		end := last.spare()
		t.enterModule(t.joined(outer.path, strconv.Itoa(i)))
		linear, fuse := s[i].(*Linear)
		if fuse = fuse && i+1 < len(s); fuse {
			_, fuse = s[i+1].(ReLU)
		}
		switch {
		case s[i] == nil:
			t.fail("Sequential", fmt.Errorf("%w: layer %d is nil", ErrInvalid, i))
			return t.inert()
		case fuse:
			y = linear.forward(t, last, true)
			i++
		case last != x || mine:
			last.hand(s[i])
			y = s[i].Forward(t, last)
			last.take()
		default:
			y = s[i].Forward(t, last)
		}
		end()
		t.setModule(outer)
		if last != x && last != y {
			last.Release()
		}
	}
	return y
}

// Buffers are those of all layers, named as parameters are.
func (s Sequential) Buffers() []NamedTensor { return buffersOf(s, true).buffers }

// Parameters are those of all layers, with the layer's number before the name: "0.weight", "0.bias",
// "2.weight". Those of a layer that stands in two places have the first name.
func (s Sequential) Parameters() Parameters { return parametersIn(s) }

// readsOnce is a layer that reads its argument in one operation, or hands it to another such layer,
// and then not again.
type readsOnce interface{ readsOnce() }

func (ReLU) readsOnce()       {}
func (Dropout) readsOnce()    {}
func (unchanged) readsOnce()  {}
func (Sequential) readsOnce() {}

// hand tells a layer that its caller releases v behind it. Layers that may read v more than once
// are told nothing.
func (v *Variable) hand(l Layer) {
	if _, ok := l.(readsOnce); ok && v != nil {
		v.handed = true
	}
}

// take takes back what hand has told, and reports whether it had told anything.
func (v *Variable) take() bool {
	if v == nil || !v.handed {
		return false
	}
	v.handed = false
	return true
}
