package nn

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
)

// PReLU is x where it is positive, and elsewhere x times a weight that is learnt (torch.nn.PReLU).
type PReLU struct {
	Weight *autograd.Parameter // (1), or (channels) for x (n, channels, ...)
}

// Forward returns [autograd.Tape.PReLU].
func (l *PReLU) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "PReLU")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable { return t.PReLU(x, t.Param(l.Weight)) })
}

// Parameters are "weight".
func (l *PReLU) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, nil)
}

func (*PReLU) readsOnce() {}

// PReLU makes an activation with one weight, or one for each channel. Weights are 0.25.
func (in *Initializer) PReLU(weights int) *PReLU {
	call := fmt.Sprintf("PReLU(%d)", weights)
	if weights < 1 {
		in.fail(call, fmt.Errorf("%w: want one weight at least", autograd.ErrInvalid))
	}
	return &PReLU{in.constant(call, 0.25, max(1, weights))}
}
