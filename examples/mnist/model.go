package main

import (
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
)

// recipe is a model and how it is trained: what the command line does not say.
type recipe struct {
	about     string
	model     func(*nn.Initializer) nn.Layer
	optimizer string
	lr        float64
	decay     float64                       // of weights, for adamw
	clip      float64                       // the greatest norm of the gradients; 0: any
	rate      func(step, steps int) float64 // the factor of the learning rate
}

// recipes are the models by name. Each takes pictures (n, 784) and gives logits (n, 10).
var recipes = map[string]recipe{
	"mlp":    {about: "784-512-512-10", model: newMLP, optimizer: "adam", lr: 1e-3, rate: linear},
	"cnn":    {about: "two convolutions, 1.2 million parameters", model: newCNN, optimizer: "adam", lr: 1e-3, rate: linear},
	"resnet": {about: "three residual blocks", model: newResNet, optimizer: "adam", lr: 2e-3, rate: linear},
	"vit":    {about: "a transformer of 16 patches", model: newViT, optimizer: "adamw", lr: 2e-3, decay: 0.05, rate: warmCosine},
	"lstm":   {about: "a picture as a sequence of rows", model: newRows, optimizer: "adam", lr: 4e-3, clip: 1, rate: linear},
}

var models = []string{"mlp", "cnn", "resnet", "vit", "lstm"}

// linear falls to 0.
func linear(step, steps int) float64 { return 1 - float64(step)/float64(steps) }

// warmCosine rises for a twentieth of the run, and falls to 0 as half a wave.
func warmCosine(step, steps int) float64 {
	done := float64(step) / float64(steps)
	return min(float64(step+1)/(0.05*float64(steps)), 1) * 0.5 * (1 + math.Cos(math.Pi*done))
}

func newMLP(in *nn.Initializer) nn.Layer {
	return nn.Sequential{
		in.Linear(pixels, 512), nn.ReLU{},
		in.Linear(512, 512), nn.ReLU{},
		in.Linear(512, classes),
	}
}

func newCNN(in *nn.Initializer) nn.Layer {
	return images{nn.Sequential{
		in.Conv2d(1, 32, 3), nn.ReLU{},
		in.Conv2d(32, 64, 3), nn.ReLU{},
		nn.MaxPool2d{Kernel: []int{2}}, nn.Flatten{},
		in.Linear(9216, 128), nn.ReLU{},
		in.Linear(128, classes),
	}}
}

// images is a model of pictures (n, 1, 28, 28).
type images struct{ nn.Sequential }

func (p images) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable { return p.Sequential.Forward(t, t.Reshape(x, -1, 1, side, side)) })
}

// newOptimizer makes the optimiser that the command line names. A rate of 0 stands for the model's, or the default of an optimiser that is
// not the model's.
func newOptimizer(in *nn.Initializer, o options, params autograd.Parameters) optim.Optimizer {
	r := recipes[o.model]
	own := o.optimizer == r.optimizer
	rate := func(standard float64) *float64 {
		switch {
		case o.lr != 0:
			return new(o.lr)
		case own:
			return new(r.lr)
		}
		return new(standard)
	}
	switch o.optimizer {
	case "adam":
		return nn.Own(in, optim.NewAdam(params, optim.AdamConfig{LR: rate(1e-3)}))
	case "adamw":
		decay := 0.01
		if own {
			decay = r.decay
		}
		return nn.Own(in, optim.NewAdamW(params, optim.AdamConfig{LR: rate(1e-3), WeightDecay: &decay}))
	case "momentum":
		return nn.Own(in, optim.NewSGD(params, optim.SGDConfig{LR: rate(0.05), Momentum: 0.9}))
	default:
		return nn.Own(in, optim.NewSGD(params, optim.SGDConfig{LR: rate(0.1)}))
	}
}
