package main

import (
	"context"

	gtensor "gorgonia.org/tensor"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/tensor"
)

// newMLP is the model mlp: 784-512-512-10 with ReLU.
func newMLP(ctx context.Context, rt *tensor.Runtime, seed uint64) (autograd.Sequential, error) {
	random := autograd.NewRand(seed)
	var m autograd.Sequential
	sizes := []int{pixels, 512, 512, classes}
	for i, in := range sizes[:len(sizes)-1] {
		l, err := autograd.NewLinear(ctx, rt, gtensor.Float32, in, sizes[i+1], random)
		if err != nil {
			return m, err
		}
		m = append(m, l)
		if i+2 < len(sizes) {
			m = append(m, autograd.ReLU{})
		}
	}
	return m, nil
}

func newOptimizer(name string, lr float64, params autograd.Parameters) (autograd.Optimizer, error) {
	or := func(standard float64) float64 {
		if lr == 0 {
			return standard
		}
		return lr
	}
	switch name {
	case "adam":
		return autograd.NewAdam(params, autograd.AdamConfig{LR: new(or(1e-3))})
	case "adamw":
		return autograd.NewAdamW(params, autograd.AdamConfig{LR: new(or(1e-3)), WeightDecay: 0.01})
	case "momentum":
		return autograd.NewSGD(params, autograd.SGDConfig{LR: new(or(0.05)), Momentum: 0.9})
	default:
		return autograd.NewSGD(params, autograd.SGDConfig{LR: new(or(0.1))})
	}
}
