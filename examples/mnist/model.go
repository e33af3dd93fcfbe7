package main

import "github.com/cistern-ml/cistern/autograd"

// newMLP is the model mlp: 784-512-512-10 with ReLU.
func newMLP(in *autograd.Initializer) autograd.Sequential {
	return autograd.Sequential{
		in.Linear(pixels, 512), autograd.ReLU{},
		in.Linear(512, 512), autograd.ReLU{},
		in.Linear(512, classes),
	}
}

// newOptimizer makes the optimiser that the command line names. A rate of 0 stands for the optimiser's default.
func newOptimizer(in *autograd.Initializer, name string, lr float64, params autograd.Parameters) autograd.Optimizer {
	rate := func(standard float64) *float64 {
		if lr == 0 {
			return new(standard)
		}
		return new(lr)
	}
	switch name {
	case "adam":
		return in.Adam(params, autograd.AdamConfig{LR: rate(1e-3)})
	case "adamw":
		return in.AdamW(params, autograd.AdamConfig{LR: rate(1e-3), WeightDecay: 0.01})
	case "momentum":
		return in.SGD(params, autograd.SGDConfig{LR: rate(0.05), Momentum: 0.9})
	default:
		return in.SGD(params, autograd.SGDConfig{LR: rate(0.1)})
	}
}
