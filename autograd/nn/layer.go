package nn

import (
	"fmt"
	"strconv"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// Layer is a function with parameters: a dense layer, an activation, a model.
type Layer interface {
	// Forward computes the layer on the tape t. It leaves x to the caller and releases its
	// intermediate values, as [autograd.Tape.Layer] does.
	Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable
	// Parameters are the layer's parameters with their names inside the layer.
	Parameters() autograd.Parameters
}

// Linear is a dense layer, y = x Weightᵀ + Bias, for x (rows, in) (torch.nn.Linear).
type Linear struct {
	Weight *autograd.Parameter // (out, in)
	Bias   *autograd.Parameter // (out); nil: none
}

// Forward returns x Weightᵀ + Bias.
func (l *Linear) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return l.forward(t, x, false)
}

func (l *Linear) forward(t *autograd.Tape, x *autograd.Variable, relu bool) *autograd.Variable {
	if l == nil {
		return noLayer(t, "Linear")
	}
	own, local := l.Bias, "bias" // weights are tied, biases are not
	if own.Name() == "" {
		own, local = l.Weight, "weight"
	}
	return t.Layer(own, local, func() *autograd.Variable {
		w, bias := t.Param(l.Weight), t.Param(l.Bias)
		if relu {
			return t.LinearReLU(x, w, bias)
		}
		return t.Linear(x, w, bias)
	})
}

// Parameters are "weight" and, if there is one, "bias".
func (l *Linear) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	ps := autograd.Parameters{{Name: "weight", Parameter: l.Weight}}
	if l.Bias != nil {
		ps = append(ps, autograd.Named{Name: "bias", Parameter: l.Bias})
	}
	return ps
}

// ReLU is the activation max(x, 0) (torch.nn.ReLU).
type ReLU struct{}

// Forward returns max(x, 0).
func (ReLU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable { return t.ReLU(x) })
}

// Parameters is empty.
func (ReLU) Parameters() autograd.Parameters { return nil }

// Flatten makes a matrix of its argument: all dimensions except the first become one
// (torch.nn.Flatten).
type Flatten struct{}

// Forward returns x as (rows, the rest), in the same memory.
func (Flatten) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Layer(nil, "", func() *autograd.Variable {
		if !t.Begin("Flatten", x) {
			return t.Fail(nil)
		}
		var dims [8]int
		shape := tensor.AppendShape(dims[:0], x.Tensor())
		if len(shape) == 0 {
			return t.Fail(fmt.Errorf("nn: Flatten: %w: a scalar has no rows", tensor.ErrShape))
		}
		n := 1
		for _, d := range shape[1:] {
			n *= d
		}
		return t.Reshape(x, shape[0], n)
	})
}

// Parameters is empty.
func (Flatten) Parameters() autograd.Parameters { return nil }

// Sequential is a chain of layers (torch.nn.Sequential).
type Sequential []Layer

// Forward applies the layers in order. It releases each value between them after the layer that
// reads it, and computes a [Linear] followed by a [ReLU] as one operation, in place. Activations
// and [Dropout] work in place too if no gradient needs their argument.
func (s Sequential) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	at := search{around: t.EnterLayer("", "").Around()}
	if len(s) > 0 {
		at.self = &s[0]
	}
	var places [4]int
	at.chain(s, places[:0])
	chain := at.enter(t, "Sequential")
	defer chain.Leave()
	defer t.Enter(nil, "").Leave()
	mine := x.Last() // x is a value between the layers of another Sequential
	y := x
	for i := 0; i < len(s); i++ {
		if s[i] == nil {
			return t.Fail(fmt.Errorf("nn: Sequential: %w: layer %d is nil", autograd.ErrInvalid, i))
		}
		linear, fuse := s[i].(*Linear)
		if fuse = fuse && i+1 < len(s); fuse {
			_, fuse = s[i+1].(ReLU)
		}
		last, own := y, mine || y != x
		var lent autograd.Lent
		if own {
			_, once := s[i].(readsOnce)
			lent = last.Lend(once)
		}
		y = func() *autograd.Variable {
			if at.found || at.unnamed { // otherwise the chain has no path in the model
				defer chain.EnterPart(strconv.Itoa(i), typeName(s[i])).Leave()
			}
			if fuse {
				return linear.forward(t, last, true)
			}
			return s[i].Forward(t, last)
		}()
		lent.Back()
		if own && last != y {
			last.Release()
		}
		if fuse {
			i++
		}
	}
	return y
}

// Buffers are those of all layers, named like the parameters.
func (s Sequential) Buffers() []NamedTensor { return buffersOf(s, true).buffers }

// Parameters are those of all layers, with the layer's number before the name: "0.weight",
// "0.bias", "2.weight". Those of a layer that is used twice have the first name.
func (s Sequential) Parameters() autograd.Parameters { return parametersIn(s) }

// readsOnce is a layer that reads its argument in one operation, or passes it to another such
// layer.
type readsOnce interface{ readsOnce() }

func (ReLU) readsOnce()       {}
func (Dropout) readsOnce()    {}
func (unchanged) readsOnce()  {}
func (Sequential) readsOnce() {}

// noLayer returns the result of a nil layer.
func noLayer(t *autograd.Tape, name string) *autograd.Variable {
	return t.Fail(fmt.Errorf("nn: %s: %w: the layer is nil", name, autograd.ErrInvalid))
}
