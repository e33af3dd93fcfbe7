package models

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

// rows reads a picture row by row.
type rows struct {
	L *nn.LSTM
	O *nn.Linear
}

func newRows(in *nn.Initializer) nn.Layer {
	return nn.LayerOf(&rows{in.LSTM(digits.Side, 128), in.Linear(128, digits.Classes)})
}

// Forward returns the logits for the state after the last row.
func (r *rows) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		y := r.L.Forward(t, t.Transpose(t.Reshape(x, -1, digits.Side, digits.Side), 0, 1))
		last := t.Narrow(y, 0, digits.Side-1, 1)
		return r.O.Forward(t, t.Reshape(last, -1, 128))
	})
}
