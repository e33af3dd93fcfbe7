// Package models has the models that mnist trains, with the recipe of each.
package models

import (
	"math"

	"github.com/cistern-ml/cistern/autograd"
	"github.com/cistern-ml/cistern/autograd/nn"
	"github.com/cistern-ml/cistern/autograd/optim"
	"github.com/cistern-ml/cistern/examples/mnist/internal/digits"
)

// Recipe is a model and how it is trained.
type Recipe struct {
	About     string
	Model     func(*nn.Initializer) nn.Layer
	Optimizer string
	LR        float64
	Decay     float64                       // of weights, for adamw
	Clip      float64                       // the largest norm of the gradients; 0: no limit
	Rate      func(step, steps int) float64 // the factor of the learning rate
}

// Recipes are the models by name. Each maps pictures (n, 784) to logits (n, 10).
var Recipes = map[string]Recipe{
	"mlp":    {About: "784-512-512-10", Model: newMLP, Optimizer: "adam", LR: 1e-3, Rate: Linear},
	"cnn":    {About: "two convolutions, 1.2 million parameters", Model: newCNN, Optimizer: "adam", LR: 1e-3, Rate: Linear},
	"resnet": {About: "three residual blocks", Model: newResNet, Optimizer: "adam", LR: 2e-3, Rate: Linear},
	"vit":    {About: "a transformer of 16 patches", Model: newViT, Optimizer: "adamw", LR: 2e-3, Decay: 0.05, Rate: warmCosine},
	"lstm":   {About: "a picture as a sequence of rows", Model: newRows, Optimizer: "adam", LR: 4e-3, Clip: 1, Rate: Linear},
}

// Names are the keys of Recipes in the order of the help text.
var Names = []string{"mlp", "cnn", "resnet", "vit", "lstm"}

// Optimizers are the names that NewOptimizer takes.
var Optimizers = []string{"adam", "adamw", "sgd", "momentum"}

// Linear returns a factor that falls from 1 to 0 in a straight line.
func Linear(step, steps int) float64 { return 1 - float64(step)/float64(steps) }

// warmCosine returns a factor that rises for a twentieth of the run and then falls to 0 as half a
// cosine.
func warmCosine(step, steps int) float64 {
	done := float64(step) / float64(steps)
	return min(float64(step+1)/(0.05*float64(steps)), 1) * 0.5 * (1 + math.Cos(math.Pi*done))
}

func newMLP(in *nn.Initializer) nn.Layer {
	return nn.Sequential{
		in.Linear(digits.Pixels, 512), nn.ReLU{},
		in.Linear(512, 512), nn.ReLU{},
		in.Linear(512, digits.Classes),
	}
}

func newCNN(in *nn.Initializer) nn.Layer {
	return images{nn.Sequential{
		in.Conv2d(1, 32, 3), nn.ReLU{},
		in.Conv2d(32, 64, 3), nn.ReLU{},
		nn.MaxPool2d{Kernel: []int{2}}, nn.Flatten{},
		in.Linear(9216, 128), nn.ReLU{},
		in.Linear(128, digits.Classes),
	}}
}

// images is a model of pictures (n, 1, 28, 28).
type images struct{ nn.Sequential }

func (p images) Forward(t *autograd.Tape, x *autograd.Variable) *autograd.Variable {
	return t.Frame(func() *autograd.Variable {
		return p.Sequential.Forward(t, t.Reshape(x, -1, 1, digits.Side, digits.Side))
	})
}

// NewOptimizer makes the optimiser of a name. A learning rate of 0 selects the recipe's or, if the
// optimiser is not the recipe's, the optimiser's default.
func (r Recipe) NewOptimizer(in *nn.Initializer, name string, lr float64, params autograd.Parameters) optim.Optimizer {
	own := name == r.Optimizer
	rate := func(standard float64) *float64 {
		switch {
		case lr != 0:
			return new(lr)
		case own:
			return new(r.LR)
		}
		return new(standard)
	}
	switch name {
	case "adam":
		return nn.Own(in, optim.NewAdam(params, optim.AdamConfig{LR: rate(1e-3)}))
	case "adamw":
		decay := 0.01
		if own {
			decay = r.Decay
		}
		return nn.Own(in, optim.NewAdamW(params, optim.AdamConfig{LR: rate(1e-3), WeightDecay: &decay}))
	case "momentum":
		return nn.Own(in, optim.NewSGD(params, optim.SGDConfig{LR: rate(0.05), Momentum: 0.9}))
	default:
		return nn.Own(in, optim.NewSGD(params, optim.SGDConfig{LR: rate(0.1)}))
	}
}
