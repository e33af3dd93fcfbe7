package main

import "github.com/cistern-ml/cistern/autograd"

func newResNet(in *autograd.Initializer) autograd.Layer {
	return images{autograd.Sequential{
		in.Conv2d(1, 32, 3, autograd.Padding(1), autograd.NoBias()), in.BatchNorm(32), autograd.ReLU{},
		newResidual(in, 32, 32, 1), newResidual(in, 32, 64, 2), newResidual(in, 64, 128, 2),
		autograd.AdaptiveAvgPool2d{Size: []int{1}}, autograd.Flatten{},
		in.Linear(128, classes),
	}}
}

// residual is two convolutions and, beside them, what came in: as it is, or through a convolution where the shape changes.
type residual struct {
	A    *autograd.Convolution
	NA   *autograd.BatchNorm
	B    *autograd.Convolution
	NB   *autograd.BatchNorm
	Side autograd.Sequential
}

func newResidual(in *autograd.Initializer, from, to, stride int) autograd.Layer {
	r := &residual{
		A: in.Conv2d(from, to, 3, autograd.Stride(stride), autograd.Padding(1), autograd.NoBias()), NA: in.BatchNorm(to),
		B: in.Conv2d(to, to, 3, autograd.Padding(1), autograd.NoBias()), NB: in.BatchNorm(to),
	}
	if stride != 1 || from != to {
		r.Side = autograd.Sequential{in.Conv2d(from, to, 1, autograd.Stride(stride), autograd.NoBias()), in.BatchNorm(to)}
	}
	return autograd.LayerOf(r)
}

// Forward returns relu(F(x) + side(x)).
func (r *residual) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		h := t.ReLU(r.NA.Forward(t, r.A.Forward(t, x)))
		h = r.NB.Forward(t, r.B.Forward(t, h))
		return t.ReLU(t.Add(h, r.Side.Forward(t, x)))
	})
}
