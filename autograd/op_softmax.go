package autograd

import "github.com/cistern-ml/cistern/tensor"

// Softmax returns the softmax of x along an axis, by default the last dimension (torch.softmax).
func (t *Tape) Softmax(x *Variable, axis ...int) *Variable {
	return opSoftmax.Apply(t, softmax{axis: newDimensions(axis)}, x)
}

// LogSoftmax returns the logarithm of Softmax (torch.log_softmax).
func (t *Tape) LogSoftmax(x *Variable, axis ...int) *Variable {
	return opSoftmax.applyAs("LogSoftmax", t, &softmax{axis: newDimensions(axis), log: true}, x)
}

type softmax struct {
	axis dimensions
	log  bool
}

var opSoftmax = newOp[softmax]("Softmax")

func (s *softmax) Forward(c *Call) (y *tensor.Tensor, err error) {
	if s.log {
		y, err = c.Runtime().LogSoftmax(c.Context(), c.Input(0), s.axis.list()...)
	} else {
		y, err = c.Runtime().Softmax(c.Context(), c.Input(0), s.axis.list()...)
	}
	return c.saving(y, err, y)
}

func (s *softmax) Backward(c *Call, g *tensor.Tensor) (err error) {
	var d *tensor.Tensor
	if s.log {
		d, err = c.Runtime().LogSoftmaxGrad(c.Context(), g, c.Result(), s.axis.list()...)
	} else {
		d, err = c.Runtime().SoftmaxGrad(c.Context(), g, c.Result(), s.axis.list()...)
	}
	c.DoneResult()
	return c.GiveReplacing(0, g, d, err)
}

// saving saves ts unless err is not nil, and returns Forward's results.
func (c *Call) saving(y *tensor.Tensor, err error, ts ...*tensor.Tensor) (*tensor.Tensor, error) {
	if err != nil {
		return nil, err
	}
	c.Save(ts...)
	return y, nil
}
