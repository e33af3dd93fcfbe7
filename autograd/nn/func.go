package nn

import "github.com/cistern-ml/cistern/autograd"

// Func is a function as a layer without parameters:
//
//	nn.Func(func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable { return t.Mean(x, 0) })
//
// Its intermediate values are freed, as in [autograd.Tape.Layer]. Use [With] for a function that
// reads parameters, because optimisers don't see those of a Func.
type Func func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable

// Forward returns f's result.
func (f Func) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if f == nil {
		return noLayer(t, "Func")
	}
	return t.Layer(nil, "", func() *autograd.Variable { return f(t, x) })
}

// Parameters is empty.
func (Func) Parameters() autograd.Parameters { return nil }

// With makes a layer of a model and a function that calls it in a chain, for example with a mask, a
// state or a second input, which forward takes from the program's variables:
//
//	masked := func(m *nn.MultiHeadAttention, t *Tape, x *Variable) *Variable {
//		return m.Attend(t, x, x, x, autograd.AttentionConfig{Mask: mask})
//	}
//	model := nn.Sequential{nn.With(in.MultiHeadAttention(64, 8), masked), in.Linear(64, 10)}
//
// The model is a layer or a struct of layers and parameters, as for [ParametersOf]. The layer has
// the model's parameters and buffers, and its type in profiles. Intermediate values are freed, as
// in [autograd.Tape.Layer]. A checkpoint of package remat calls forward again in the backward pass,
// so the program's variables must not change until then.
func With[M any](model M, forward func(model M, t *autograd.Tape, x *autograd.Variable) *autograd.Variable) Layer {
	m := &module{model: model}
	if forward != nil {
		m.forward = func(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
			return t.Layer(nil, "", func() *autograd.Variable { return forward(model, t, x) })
		}
	}
	return m
}
