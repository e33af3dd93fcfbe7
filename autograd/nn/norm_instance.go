package nn

import (
	"fmt"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// InstanceNorm normalises each channel of each element of x (n, channels, ...), of any number of
// dimensions (torch.nn.InstanceNorm1d, InstanceNorm2d, without running statistics). Its zero value
// is PyTorch's default.
type InstanceNorm struct {
	Weight, Bias *autograd.Parameter // (channels); nil: none
	Eps          float64             // added to the variance; 0: 1e-5
}

// Forward returns x with normalised channels: a group norm with a group for each channel.
func (l *InstanceNorm) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	if l == nil {
		return noLayer(t, "InstanceNorm")
	}
	return t.Layer(l.Weight, "weight", func() *autograd.Variable {
		var dims [8]int
		if !t.Begin("InstanceNorm", x) {
			return t.Fail(nil)
		}
		shape := tensor.AppendShape(dims[:0], x.Tensor())
		if len(shape) < 3 {
			return t.Fail(fmt.Errorf("nn: InstanceNorm: %w %v: want (n, channels, ...) with elements in each channel", tensor.ErrShape, x.Shape()))
		}
		return t.GroupNorm(x, t.Param(l.Weight), t.Param(l.Bias), shape[1], l.Eps)
	})
}

// Parameters are "weight" and "bias", if there are any.
func (l *InstanceNorm) Parameters() autograd.Parameters {
	if l == nil {
		return nil
	}
	return weightAndBias(l.Weight, l.Bias)
}

// InstanceNorm makes an instance norm without weights and biases. It takes [Eps] and [Affine].
func (in *Initializer) InstanceNorm(channels int, options ...LayerOption) *InstanceNorm {
	call := fmt.Sprintf("InstanceNorm(%d)", channels)
	o := in.options(call, options, "Eps", "Affine")
	if channels < 1 {
		in.fail(call, fmt.Errorf("%w: want one channel at least", autograd.ErrInvalid))
	}
	l := &InstanceNorm{Eps: in.eps(call, o)}
	if o.affine {
		l.Weight, l.Bias = in.constant(call, 1, channels), in.constant(call, 0, channels)
	}
	return l
}
