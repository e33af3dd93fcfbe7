package models

import (
	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

func newResNet(in *nn.Initializer) nn.Layer {
	return images{nn.Sequential{
		in.Conv2d(1, 32, 3, nn.Padding(1), nn.NoBias()), in.BatchNorm(32), nn.ReLU{},
		newResidual(in, 32, 32, 1), newResidual(in, 32, 64, 2), newResidual(in, 64, 128, 2),
		nn.AdaptiveAvgPool2d{Size: []int{1}}, nn.Flatten{},
		in.Linear(128, digits.Classes),
	}}
}

// residual adds its input to the result of two convolutions. If the shape changes, the input passes
// through a convolution of its own.
type residual struct {
	A    *nn.Convolution
	NA   *nn.BatchNorm
	B    *nn.Convolution
	NB   *nn.BatchNorm
	Side nn.Sequential
}

func newResidual(in *nn.Initializer, from, to, stride int) nn.Layer {
	r := &residual{
		A: in.Conv2d(from, to, 3, nn.Stride(stride), nn.Padding(1), nn.NoBias()), NA: in.BatchNorm(to),
		B: in.Conv2d(to, to, 3, nn.Padding(1), nn.NoBias()), NB: in.BatchNorm(to),
	}
	if stride != 1 || from != to {
		r.Side = nn.Sequential{in.Conv2d(from, to, 1, nn.Stride(stride), nn.NoBias()), in.BatchNorm(to)}
	}
	return nn.LayerOf(r)
}

// Forward returns relu(F(x) + Side(x)).
func (r *residual) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.ReLU(r.NA.Forward(t, r.A.Forward(t, x)))
		h = r.NB.Forward(t, r.B.Forward(t, h))
		return t.ReLU(t.Add(h, r.Side.Forward(t, x)))
	})
}
