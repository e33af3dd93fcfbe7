package autograd

import "github.com/cistern-ml/cistern/tensor"

// Cast returns x rounded to another dtype of floating point (torch.Tensor.to), or x itself if it
// has that dtype. The gradient is cast back.
func (t *Tape) Cast(x *Variable, dtype tensor.Dtype) *Variable {
	if !t.begin("Cast", x) {
		return t.inert()
	}
	if x.value.Dtype() == dtype {
		return x
	}
	return opCast.Apply(t, cast{dtype}, x)
}

type cast struct{ to tensor.Dtype }

var opCast = newOp[cast]("Cast")

func (s *cast) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Convert(c.Context(), c.Input(0), s.to)
}

func (*cast) Backward(c *Call, g *tensor.Tensor) error {
	d, err := c.Runtime().Convert(c.Context(), g, c.Input(0).Dtype())
	return c.GiveReplacing(0, g, d, err)
}

type detaching struct{}

var opDetach = newOp[detaching]("Detach")

func (*detaching) constant() {}

func (*detaching) Forward(c *Call) (*tensor.Tensor, error) {
	return c.Runtime().Share(c.Context(), c.Input(0))
}

func (*detaching) Backward(*Call, *tensor.Tensor) error { return nil }

// Detach returns x as a constant, in the same memory: no gradient goes through it
// (torch.Tensor.detach).
//
//go:noinline // as Add
func (t *Tape) Detach(x *Variable) *Variable {
	return opDetach.Apply(t, detaching{}, x)
}
